"""What the scheduler decides, case by case: who is served, how much, who waits and why, who must make room."""

from __future__ import annotations

import pytest

from tests.engine.paged_fake import greedy, open_engine
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError


def shares(trace: StepTrace) -> list[tuple[str, int, int, str]]:
    """(request, computed before, tokens now, kind) in the order of the plan."""
    return [(s["request_id"], s["num_computed_tokens"], s["num_tokens"], s["kind"]) for s in trace.scheduled]


def skips(trace: StepTrace) -> list[tuple[str, str]]:
    return [(s["request_id"], s["reason"]) for s in trace.skipped]


def add(engine: Engine, *requests: tuple[str, int, int]) -> None:
    """(id, prompt tokens, max_tokens) each."""
    for name, length, max_tokens in requests:
        engine.add_request([ord(name[0]) % 40] * length, greedy(max_tokens), name)


def drain(engine: Engine) -> list[StepTrace]:
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
        engine.pool.check()
    assert engine.pool.num_free == engine.pool.num_blocks
    return traces


def test_running_requests_come_before_waiting_ones() -> None:
    engine = open_engine(max_num_batched_tokens=8)
    add(engine, ("a", 3, 9), ("b", 2, 9))
    assert shares(engine.step()) == [("a", 0, 3, "prefill"), ("b", 0, 2, "prefill")]
    add(engine, ("c", 20, 9))
    # One token each for those that run; the newcomer's first chunk takes what is left of the budget.
    assert shares(engine.step()) == [("a", 3, 1, "decode"), ("b", 2, 1, "decode"), ("c", 0, 6, "prefill")]
    assert shares(engine.step()) == [("a", 4, 1, "decode"), ("b", 3, 1, "decode"), ("c", 6, 6, "prefill")]


def test_the_budget_cuts_a_prompt_and_the_rest_wait() -> None:
    engine = open_engine(max_num_batched_tokens=8)
    add(engine, ("a", 5, 2), ("b", 5, 2), ("c", 5, 2))
    trace = engine.step()
    assert shares(trace) == [("a", 0, 5, "prefill"), ("b", 0, 3, "prefill")]
    assert skips(trace) == [("c", "budget")]
    assert [new["request_id"] for new in trace.new_tokens] == ["a"], "a prompt that is cut gives no token yet"


def test_a_budget_of_one_serves_the_oldest_until_it_ends() -> None:
    engine = open_engine(max_num_batched_tokens=1)
    add(engine, ("a", 2, 2), ("b", 1, 1))
    traces = drain(engine)
    assert [shares(trace)[0][0] for trace in traces] == ["a", "a", "a", "b"]
    assert skips(traces[0]) == [("b", "budget")]


def test_a_running_request_without_budget_is_told_so() -> None:
    engine = open_engine(max_num_batched_tokens=2)
    add(engine, ("a", 1, 9), ("b", 1, 9))
    engine.step()
    add(engine, ("c", 1, 9))
    assert skips(engine.step()) == [("c", "budget")]
    engine.scheduler.max_num_batched_tokens = 1
    assert skips(engine.step()) == [("b", "budget"), ("c", "budget")]


def test_max_num_seqs_limits_who_runs() -> None:
    engine = open_engine(max_num_seqs=2)
    add(engine, ("a", 1, 1), ("b", 1, 3), ("c", 1, 1), ("d", 1, 1))
    trace = engine.step()
    assert [share[0] for share in shares(trace)] == ["a", "b"]
    assert skips(trace) == [("c", "max_num_seqs"), ("d", "max_num_seqs")]
    assert [share[0] for share in shares(engine.step())] == ["b", "c"], "a seat that is free is taken at once"


def test_long_prompts_are_cut_by_their_own_threshold() -> None:
    engine = open_engine(max_num_batched_tokens=20, long_prefill_token_threshold=6)
    add(engine, ("a", 15, 2), ("b", 4, 2))
    assert shares(engine.step()) == [("a", 0, 6, "prefill"), ("b", 0, 4, "prefill")]
    assert shares(engine.step()) == [("a", 6, 6, "prefill"), ("b", 4, 1, "decode")]
    assert shares(engine.step()) == [("a", 12, 3, "prefill")]


def test_waiting_for_blocks_keeps_the_order() -> None:
    """The head does not fit; nobody behind it overtakes, though `c` would fit."""
    engine = open_engine(num_kv_blocks=4, block_size=4)
    add(engine, ("a", 8, 5), ("b", 12, 1), ("c", 1, 1))
    trace = engine.step()
    assert [share[0] for share in shares(trace)] == ["a"]
    assert skips(trace) == [("b", "no_blocks"), ("c", "no_blocks")]
    assert [entry["request_id"] for t in drain(engine) for entry in t.finished] == ["a", "b", "c"]


def test_the_newest_makes_room_and_resumes_in_front() -> None:
    engine = open_engine(num_kv_blocks=4, block_size=2, max_num_seqs=3)
    add(engine, ("a", 2, 7), ("b", 2, 5), ("c", 2, 3), ("d", 1, 1))
    assert skips(engine.step()) == [("d", "max_num_seqs")]
    # Each holds a full block and needs a second one; one is free, so a takes it and b sends c away.
    trace = engine.step()
    assert trace.preempted == ["c"]
    assert shares(trace) == [("a", 2, 1, "decode"), ("b", 2, 1, "decode")]
    assert skips(trace) == [("c", "no_blocks"), ("d", "no_blocks")]
    assert [request.request_id for request in engine.scheduler.waiting] == ["c", "d"]
    traces = drain(engine)
    order = [share[0] for t in traces for share in shares(t)]
    assert order.index("c") < order.index("d")
    [resumed] = [share for t in traces for share in shares(t) if share[0] == "c" and share[1] == 0]
    assert resumed == ("c", 0, 3, "recompute"), (
        "prompt and output are computed again, in one go where the budget allows"
    )
    assert engine.stats()["num_preemptions"] == sum(len(t.preempted) for t in [trace, *traces])


def test_kinds_of_a_recomputed_request() -> None:
    """Tokens computed before a preemption are told from new ones, chunk by chunk; the newest one is a decode."""
    engine = open_engine(num_kv_blocks=3, block_size=2, max_num_batched_tokens=3)
    add(engine, ("a", 2, 4), ("b", 1, 4))
    traces = drain(engine)
    preempted = next(i for i, trace in enumerate(traces) if trace.preempted)
    kinds = [share[1:] for trace in traces[preempted:] for share in shares(trace) if share[0] == "b"]
    assert kinds == [(0, 3, "recompute"), (3, 1, "decode")]


def test_a_lone_request_may_fill_the_pool() -> None:
    """Prompt + output is one token more than the pool holds: the last token's KV is never needed."""
    engine = open_engine(num_kv_blocks=3, block_size=4, max_model_len=50)
    engine.add_request([1] * 9, greedy(4), "exact")
    traces = drain(engine)
    assert sum(len(trace.new_tokens) for trace in traces) == 4
    assert engine.stats()["num_preemptions"] == 0
    assert min(trace.blocks["free"] for trace in traces) == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "options", "message"),
    [
        (0, 4, {}, "prompt is empty"),
        (20, 1, {"max_model_len": 20}, "20 tokens and max_model_len=20 leaves no room"),
        (21, None, {"max_model_len": 20}, "21 tokens and max_model_len=20 leaves no room"),
        (10, 11, {"max_model_len": 20}, r"10 prompt tokens \+ max_tokens=11 are more than max_model_len=20"),
        (10, 8, {"num_kv_blocks": 4, "block_size": 4}, r"do not fit the KV pool of 4 blocks × 4 tokens"),
        (17, None, {"num_kv_blocks": 4, "block_size": 4}, r"17 prompt tokens .* do not fit the KV pool of 4 blocks"),
        (17, 1, {"num_kv_blocks": 4, "block_size": 4}, r"17 prompt tokens .* do not fit the KV pool of 4 blocks"),
    ],
)
def test_what_could_never_run_is_refused_by_name(prompt, max_tokens, options, message) -> None:
    engine = open_engine(**options)
    add(engine, ("before", 3, 2))
    with pytest.raises(UsageError, match=message):
        engine.add_request([1] * prompt, greedy(max_tokens), "refused")
    add(engine, ("c", 3, 2))
    traces = drain(engine)
    assert [entry["request_id"] for trace in traces for entry in trace.finished] == ["before", "c"]
    assert all("refused" not in trace.to_json() for trace in traces)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "options", "length"),
    [
        (19, 1, {"max_model_len": 20}, 20),
        (10, 10, {"max_model_len": 20}, 20),
        (10, None, {"max_model_len": 20}, 20),
        (16, 1, {"num_kv_blocks": 4, "block_size": 4}, 17),
        (10, 7, {"num_kv_blocks": 4, "block_size": 4}, 17),
        (16, None, {"num_kv_blocks": 4, "block_size": 4}, 17),
        (1, None, {"num_kv_blocks": 1, "block_size": 1}, 2),
    ],
)
def test_what_just_fits_is_accepted_and_runs_to_its_end(prompt, max_tokens, options, length) -> None:
    engine = open_engine(**options)
    engine.add_request([1] * prompt, greedy(max_tokens), "x")
    request = engine.requests["x"]
    drain(engine)
    assert (request.num_tokens, request.finish_reason) == (length, "length")


def test_a_long_queue_is_listed_in_part() -> None:
    engine = open_engine(max_num_seqs=1)
    for _ in range(200):
        engine.add_request([1], greedy(1))
    trace = engine.step()
    assert len(trace.skipped) == 64
    assert trace.num_waiting == 199


def test_a_step_with_nothing_to_do_is_empty() -> None:
    engine = open_engine()
    trace = engine.step()
    assert (trace.scheduled, trace.skipped, trace.finished, trace.new_tokens) == ([], [], [], [])
