"""Static, dynamic, continuous, prefill first: the same loop, and what each does to the same arrivals."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.engine.driver import Arrival, Run, feed
from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.clock import VirtualClock, WallClock
from workbench.engine.engine import Engine
from workbench.engine.request import Status


def skips(engine: Engine) -> dict[str, str]:
    return {skip["request_id"]: skip["reason"] for skip in engine.step().skipped}


TEN = [Arrival(i / 10, f"r{i}") for i in range(9)] + [Arrival(300.0, "last")]


def test_static_nine_wait_five_minutes_for_the_tenth() -> None:
    run = feed(open_engine(batching="static", max_num_seqs=10), TEN)
    assert [trace.time for trace in run.traces] == [300.0]
    assert set(run.returned().values()) == {301.0}
    waits = [run.requests[f"r{i}"].first_scheduled_time - i / 10 for i in range(9)]
    assert all(wait == pytest.approx(300 - i / 10) for i, wait in enumerate(waits))


@pytest.mark.parametrize(
    ("passengers", "leaves"),
    [
        ([30.0 * i for i in range(8)], 300.0),  # eight in five minutes: it leaves with eight
        ([20.0 * i for i in range(10)], 180.0),  # the tenth comes early: it leaves with ten
        ([0.1 * i for i in range(3)], 300.0),
        ([7.3], 307.3),
    ],
)
def test_dynamic_is_a_ferry_of_ten_seats_and_five_minutes(passengers: list[float], leaves: float) -> None:
    engine = open_engine(batching="dynamic", max_num_seqs=10, max_wait_ms=300_000.0)
    run = feed(engine, [Arrival(time, f"p{i}") for i, time in enumerate(passengers)], last_is_known=False)
    [trace] = run.traces
    assert trace.time == pytest.approx(leaves, abs=1e-9)
    assert len(trace.scheduled) == len(passengers)


@pytest.mark.parametrize("start", [0.1, 1.1, 3.3, 1e5 + 0.7, 12345.678])
@pytest.mark.parametrize("wait_ms", [0.0, 0.1, 33.3, 200.0, 1e5 / 3])
def test_whoever_sleeps_until_the_wake_time_finds_work(start: float, wait_ms: float) -> None:
    """Rounding must not wake a driver a moment before the batch departs: it would spin."""
    engine = open_engine(batching="dynamic", max_wait_ms=wait_ms)
    assert isinstance(engine.clock, VirtualClock)
    engine.more_may_come = True
    engine.clock.advance(start)
    engine.add_request([1], greedy(1))
    if wait_ms:
        trace = engine.step()
        assert not trace.scheduled and trace.wake_time == engine.wake_time() > start
        assert [skip["reason"] for skip in trace.skipped] == ["waiting_batch"]
    engine.clock.advance_to(engine.wake_time())
    assert engine.wake_time() == engine.clock.now()
    trace = engine.step()
    assert trace.scheduled and trace.wake_time is None


def test_wake_times() -> None:
    engine = open_engine(batching="static", max_num_seqs=2)
    assert engine.wake_time() == math.inf, "an empty engine has nothing to do"
    engine.more_may_come = True
    engine.add_request([1], greedy(3))
    assert engine.wake_time() == math.inf, "only another request can help"
    assert engine.step().wake_time is None
    engine.more_may_come = False
    assert engine.wake_time() == 0.0
    engine.step()
    assert engine.wake_time() == 0.0, "a batch is on its way"
    engine = open_engine()
    engine.add_request([1], greedy(1))
    assert engine.wake_time() == 0.0


@pytest.mark.parametrize("batching", ["static", "dynamic"])
@pytest.mark.parametrize("count", [1, 5, 8, 11])
def test_a_plain_loop_over_step_ends(batching: str, count: int) -> None:
    """Nobody waits for company unless told that there may be some: a call of `generate` with five prompts ends."""
    engine = open_engine(batching=batching, max_num_seqs=8)
    for _ in range(count):
        engine.add_request([1], greedy(2))
    steps = 0
    while engine.has_unfinished():
        assert engine.step().scheduled
        steps += 1
    assert steps == 2 * math.ceil(count / 8)


def batch_of_two() -> Engine:
    engine = open_engine(batching="static", max_num_seqs=2, block_size=2, num_kv_blocks=8)
    for name, max_tokens in (("short", 1), ("long", 4), ("next", 1)):
        engine.add_request([1, 2, 3], greedy(max_tokens), name)
    return engine


def test_a_static_batch_returns_when_its_slowest_is_done() -> None:
    engine = batch_of_two()
    traces = [engine.step() for _ in range(4)]
    assert [[new["request_id"] for new in t.new_tokens] for t in traces] == [["short", "long"], *[["long"]] * 3]
    assert [t.held for t in traces] == [[], ["short"], ["short"], ["short"]], "three idle slots"
    assert [[end["request_id"] for end in t.finished] for t in traces] == [[], [], [], ["short", "long"]]
    assert all(skip == {"request_id": "next", "reason": "waiting_batch"} for t in traces for skip in t.skipped)
    assert [t.num_running for t in traces] == [2, 2, 2, 0]
    assert [s["request_id"] for s in engine.step().scheduled] == ["next"]


def test_a_complete_answer_keeps_its_blocks_until_the_batch_is_done() -> None:
    engine = batch_of_two()
    short = engine.requests["short"]
    engine.step()
    assert (short.status, short.end_reason, short.finish_reason) == (Status.HELD, "length", None)
    assert len(engine.pool.tables["short"]) == 2 and engine.pool.num_free == 4
    for _ in range(3):
        engine.step()
    assert short.finish_reason == "length" and not engine.pool.tables and engine.pool.num_free == 8


def test_its_blocks_go_before_anybody_is_preempted() -> None:
    """Kept memory must not stand in the way of the member that could not end without it."""
    engine = open_engine(batching="static", max_num_seqs=2, block_size=2, num_kv_blocks=4)
    engine.add_request([1, 2, 3, 4], greedy(1), "short")
    engine.add_request([1, 2], greedy(6), "long")
    held = []
    while engine.has_unfinished():
        held.append(len(engine.pool.tables.get("short", ())))
        engine.step()
        engine.pool.check()
    assert max(held) == 2 and held[-1] == 0
    assert engine.stats()["num_preemptions"] == 0


def test_abort_of_a_held_answer_and_of_the_last_that_runs() -> None:
    engine = batch_of_two()
    engine.step()
    assert engine.abort("short") and not engine.abort("short")
    engine.pool.check()
    engine.step()
    engine = batch_of_two()
    engine.step()
    assert engine.abort("long")
    trace = engine.step()
    assert [end["request_id"] for end in trace.finished] == ["long", "short"]
    assert [s["request_id"] for s in engine.step().scheduled] == ["next"]


def test_who_was_preempted_does_not_wait_for_company_again() -> None:
    engine = open_engine(batching="static", max_num_seqs=3, block_size=2, num_kv_blocks=4)
    engine.more_may_come = True
    for name in "abc":
        engine.add_request([1, 2], greedy(6), name)
    steps = 0
    while engine.has_unfinished():
        engine.step()
        steps += 1
        assert steps < 50, "more may come, but nobody does"
    assert engine.stats()["num_preemptions"] > 0


def test_a_batch_whose_prompts_exceed_a_step_fills_over_several() -> None:
    engine = open_engine(batching="static", max_num_seqs=3, max_num_batched_tokens=4)
    for name in "abcd":
        engine.add_request([1] * 3, greedy(9), name)
    assert {s["request_id"] for s in engine.step().scheduled} == {"a", "b"}
    for _ in range(3):
        assert "d" not in {s["request_id"] for s in engine.step().scheduled}
    assert engine.stats()["num_running"] == 3 and skips(engine) == {"d": "waiting_batch"}


ARRIVALS = [Arrival(0.0, "a", 4, 12), Arrival(0.0, "b", 4, 3)] + [Arrival(3.0 + i, f"p{i}", 16, 2) for i in range(6)]


def gaps(run: Run, name: str) -> list[float]:
    times = run.token_times(name)
    return [later - earlier for earlier, later in pairwise(times)]


def test_prefill_first_lets_a_running_answer_stand_still_and_continuous_does_not() -> None:
    """While prompts keep arriving, one a step, a decode gets nothing; served first it gets a token in every step."""
    sizes = {"num_kv_blocks": 64, "max_num_batched_tokens": 18}
    starved = feed(open_engine(batching="prefill-first", **sizes), ARRIVALS)
    fair = feed(open_engine(**sizes), ARRIVALS)
    assert max(gaps(fair, "a")) == 1.0
    assert max(gaps(starved, "a")) >= 6.0
    stood = [t for t in starved.traces if {"request_id": "a", "reason": "prefill_first"} in t.skipped]
    assert len(stood) >= 6
    for trace in starved.traces:
        assert len({s["kind"] == "decode" for s in trace.scheduled}) == 1, "prompts or decodes, never both"
    assert any(len({s["kind"] for s in t.scheduled}) == 2 for t in fair.traces)
    mean_wait = [sum(r.first_token_time - r.arrival_time for r in run.requests.values()) / 8 for run in (starved, fair)]
    assert mean_wait[0] <= mean_wait[1], "what it is for: first tokens come early"


def test_one_long_prompt_stalls_decodes_only_where_prefill_goes_first() -> None:
    """160 prompt tokens at a budget of 16, as measured with nano-vllm: ten steps without a token."""
    arrivals = [Arrival(0.0, "a", 4, 30), Arrival(2.0, "long", 160, 1)]
    sizes = {"num_kv_blocks": 100, "max_model_len": 400, "max_num_batched_tokens": 16}
    starved = feed(open_engine(batching="prefill-first", **sizes), arrivals)
    fair = feed(open_engine(**sizes), arrivals)
    assert max(gaps(starved, "a")) == 11.0 and max(gaps(fair, "a")) == 1.0


def test_the_order_of_the_generations() -> None:
    """Skewed answers that arrive at once: fewer steps from static to dynamic to continuous, the same tokens."""
    arrivals = [Arrival(0.4 * i, f"r{i}", 3 + i % 5, 24 if i % 8 == 0 else 2 + i % 3) for i in range(32)]
    runs = {
        "static": feed(open_engine(batching="static", num_kv_blocks=200), arrivals),
        "dynamic": feed(open_engine(batching="dynamic", max_wait_ms=1000.0, num_kv_blocks=200), arrivals),
        "continuous": feed(open_engine(num_kv_blocks=200), arrivals),
    }
    ends = {name: max(run.returned().values()) for name, run in runs.items()}
    assert ends["continuous"] * 1.5 < ends["static"]
    assert ends["continuous"] < ends["dynamic"]
    idle = {name: sum(len(t.held) for t in run.traces) for name, run in runs.items()}
    assert idle["continuous"] == 0 < idle["static"]
    for name, request in runs["static"].requests.items():
        alone, _ = answer_alone(request.prompt_token_ids, request.params, 100)
        assert all(run.requests[name].output_token_ids == alone for run in runs.values())


# Chunked prefill off.


def test_whole_prompts_wait_until_they_fit_a_step() -> None:
    engine = open_engine(enable_chunked_prefill=False, max_num_batched_tokens=8)
    for name, length in (("a", 5), ("b", 5), ("c", 2)):
        engine.add_request([1] * length, greedy(2), name)
    trace = engine.step()
    assert [(s["request_id"], s["num_tokens"]) for s in trace.scheduled] == [("a", 5)]
    assert [tuple(skip.values()) for skip in trace.skipped] == [("b", "budget"), ("c", "budget")], "c does not overtake"
    assert [(s["request_id"], s["num_tokens"]) for s in engine.step().scheduled] == [("a", 1), ("b", 5), ("c", 2)]


def test_a_recomputation_longer_than_a_step_is_cut_all_the_same() -> None:
    """The prompt fitted; prompt and answer no longer do. It could never come back whole."""
    engine = open_engine(
        enable_chunked_prefill=False, max_num_batched_tokens=6, num_kv_blocks=6, block_size=2, max_model_len=40
    )
    for name in "ab":
        engine.add_request([1] * 4, greedy(8), name)
    recomputed = []
    while engine.has_unfinished():
        recomputed += [s["num_tokens"] for s in engine.step().scheduled if s["kind"] == "recompute"]
    assert 6 in recomputed, recomputed


def test_clocks_wait_until_a_moment() -> None:
    clock = VirtualClock()
    clock.advance_to(2.5)
    clock.advance_to(1.0)
    assert clock.now() == 2.5
    wall = WallClock()
    wall.advance_to(wall.now() + 0.01)
    assert wall.now() >= 0.01
    wall.advance_to(-1.0)
    for endless in (clock, wall):
        with pytest.raises(ValueError, match="nobody would wake"):
            endless.advance_to(math.inf)
