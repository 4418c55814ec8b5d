"""What becomes of a request that must make room: recomputed or swapped, it answers as if nothing had happened."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.admission import growth
from workbench.engine.engine import Engine
from workbench.engine.request import Request, Status
from workbench.engine.trace import StepTrace
from workbench.kv.pool import BlockPool
from workbench.plan import StepPlan
from workbench.sampling_params import SamplingParams


def crowd(engine: Engine, lengths: str = "abcd", prompt: int = 4, max_tokens: int = 12) -> dict[str, Request]:
    for name in lengths:
        engine.add_request([ord(name) % 40] * prompt, greedy(max_tokens), name)
    return dict(engine.requests)


def drain(engine: Engine) -> list[StepTrace]:
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
        engine.pool.check()
        if engine.host is not None:
            engine.host.check()
    assert engine.pool.num_free == engine.pool.num_blocks
    assert engine.host is None or engine.host.num_free == engine.host.num_blocks
    return traces


def assert_answers(requests: dict[str, Request]) -> None:
    for name, request in requests.items():
        alone, reason = answer_alone(request.prompt_token_ids, request.params, 100)
        assert (request.output_token_ids, request.finish_reason) == (alone, reason), name


def kinds(traces: list[StepTrace]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trace in traces:
        for item in trace.scheduled:
            counts[item["kind"]] = counts.get(item["kind"], 0) + item["num_tokens"]
    return counts


@pytest.mark.parametrize("block_size", [1, 2, 4, 5])
@pytest.mark.parametrize("prompt", [3, 4, 5])
def test_swapped_requests_compute_nothing_twice(block_size: int, prompt: int) -> None:
    """Around the edge of a block: what is brought back is what was taken away."""
    sizes = {"num_kv_blocks": 40 // block_size, "block_size": block_size}
    swapping, recomputing = open_engine(preemption_mode="swap", **sizes), open_engine(**sizes)
    swapped, recomputed = crowd(swapping, prompt=prompt), crowd(recomputing, prompt=prompt)
    swap_traces, traces = drain(swapping), drain(recomputing)
    assert_answers(swapped)
    assert_answers(recomputed)
    assert sum(len(t.preempted) for t in swap_traces) > 0 and sum(len(t.preempted) for t in traces) > 0
    assert "recompute" not in kinds(swap_traces) and kinds(traces)["recompute"] > 0
    moved = [sum(t.blocks[name] for t in swap_traces) for name in ("swapped_out", "swapped_in")]
    assert moved[0] == moved[1] > 0
    assert sum(t.blocks["swapped_out"] for t in traces) == 0


def test_a_full_host_falls_back_to_recomputation() -> None:
    engine = open_engine(preemption_mode="swap", num_host_kv_blocks=2, num_kv_blocks=10, block_size=4)
    requests = crowd(engine)
    traces = drain(engine)
    assert_answers(requests)
    assert kinds(traces)["recompute"] > 0 and sum(t.blocks["swapped_in"] for t in traces) > 0, "some of each"


def swapped_out(engine: Engine) -> str:
    """Steps until somebody lies in the host's store."""
    assert engine.host is not None
    while not engine.host.tables:
        engine.step()
    return next(iter(engine.host.tables))


def test_abort_of_a_swapped_request_frees_the_host() -> None:
    engine = open_engine(preemption_mode="swap", num_kv_blocks=10)
    requests = crowd(engine)
    name = swapped_out(engine)
    assert engine.host is not None and engine.host.num_free < engine.host.num_blocks
    assert engine.abort(name)
    assert name not in engine.host.tables and engine.host.num_free == engine.host.num_blocks
    del requests[name]
    drain(engine)
    assert_answers(requests)


@pytest.mark.parametrize("before", [True, False])
def test_a_failed_step_whose_moves_may_be_lost(before: bool) -> None:
    """The runner fails in every step that moves blocks, before or after it has moved them: nothing stale is read."""
    engine = open_engine(preemption_mode="swap", num_kv_blocks=10)
    requests = crowd(engine)
    failed = []

    def fail(plan: StepPlan) -> None:
        if plan.moves and len(failed) < 6:
            failed.append(plan)
            raise RuntimeError("the device is lost")

    setattr(engine.runner, "before" if before else "during", fail)
    while engine.has_unfinished():
        with suppress(RuntimeError):
            engine.step()
        engine.pool.check()
        engine.host.check()
    assert len(failed) >= 2
    assert_answers(requests)


def test_forks_are_swapped_with_the_blocks_they_share() -> None:
    engine = open_engine(preemption_mode="swap", num_kv_blocks=8, block_size=2)
    engine.add_request([7] * 5, SamplingParams(max_tokens=8, n=3, seed=3))
    requests = dict(engine.requests)
    traces = drain(engine)
    assert sum(t.blocks["swapped_in"] for t in traces) > 0 and sum(t.blocks["shared"] for t in traces) > 0
    for request in requests.values():
        assert request.output_token_ids == answer_alone([7] * 5, request.params, 100, (), request.seed)[0]


def test_a_fork_whose_copy_was_lost_computes_again() -> None:
    engine = open_engine(block_size=4)
    engine.add_request([7] * 6, SamplingParams(max_tokens=3, n=2, seed=3))
    requests = dict(engine.requests)
    engine.step()

    def fail(plan: StepPlan) -> None:
        assert plan.copies
        raise RuntimeError("the device is lost")

    engine.runner.before = fail
    with pytest.raises(RuntimeError):
        engine.step()
    engine.runner.before = lambda plan: None
    drain(engine)
    for request in requests.values():
        assert request.output_token_ids == answer_alone([7] * 6, request.params, 100, (), request.seed)[0]


def test_swapping_brings_decodes_back_without_a_prefill_in_every_batching() -> None:
    for batching in ("continuous", "static", "dynamic", "prefill-first"):
        engine = open_engine(preemption_mode="swap", num_kv_blocks=10, batching=batching)
        requests = crowd(engine)
        traces = drain(engine)
        assert_answers(requests)
        assert "recompute" not in kinds(traces), batching


def test_a_victim_has_a_token_to_show_before_it_is_sent_away_again() -> None:
    """A long recomputation in small chunks while those ahead still grow: it waits until it can keep its place."""
    engine = open_engine(num_kv_blocks=30, block_size=2, max_model_len=60, max_num_batched_tokens=6, max_num_seqs=4)
    requests = crowd(engine, "abcd", prompt=9, max_tokens=14)
    had: dict[str, int] = {}
    while engine.has_unfinished():
        for name in engine.step().preempted:
            tokens = requests[name].num_tokens
            assert tokens > had.get(name, 0), f"{name} was sent away twice at {tokens} tokens"
            had[name] = tokens
    assert had
    assert_answers(requests)


def test_throughput_recovers_after_preemptions() -> None:
    """Once those in the way have ended, as many run as before; no limit stays behind."""
    engine = open_engine(num_kv_blocks=12, block_size=4)
    crowd(engine)
    drain(engine)
    assert engine.stats()["num_preemptions"] > 0
    crowd(engine, "wxyz", prompt=2, max_tokens=2)
    assert len(engine.step().scheduled) == 4


def running(name: int, tokens: int, computed: int, blocks: int, ends: int = 99) -> Request:
    request = Request(str(name), [1] * tokens, SamplingParams(), max_num_tokens=ends)
    request.rank, request.status = (0.0, name), Status.RUNNING
    request.num_computed_tokens, request.block_table = computed, list(range(blocks))
    return request


def test_room_for_those_ahead() -> None:
    """By hand: blocks of 4; two that decode and one that comes back with 20 tokens behind after this step."""
    pool = BlockPool(50, 4)
    ahead = [running(0, 9, 8, 3), running(1, 12, 11, 3)]
    back = running(2, 40, 0, 0)
    assert growth(back, 0, ahead, pool, 12, 12) == 0, "it catches up at once"
    # Each step leaves 12 − 2 = 10 tokens: 3 steps for 22 tokens, 2 for its own share at most 12 at a time. 5 tokens
    # more make 14 and 17 tokens: 4 and 5 blocks, of which 3 and 3 are there.
    assert growth(back, 20, ahead, pool, 12, 12) == 1 + 2
    # A budget that decodes use up leaves no pace: room to the end, 98 tokens each.
    assert growth(back, 20, ahead, pool, 2, 2) == 2 * (25 - 3)
    # Nobody behind it in rank counts: these give way.
    assert growth(running(-1, 40, 0, 0), 20, ahead, pool, 12, 12) == 0
