"""What is refused, by name and with a remedy, and that a refusal leaves a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.paged_fake import greedy, open_engine
from workbench.engine.admission import QueueFull
from workbench.engine.replay import replay
from workbench.errors import UsageError, WorkbenchError
from workbench.sampling_params import SamplingParams


def test_a_full_queue_refuses_with_a_reason_and_counts() -> None:
    engine = open_engine(max_num_queued_reqs=2, max_num_seqs=1)
    for name in "ab":
        engine.add_request([1], greedy(2), name)
    with pytest.raises(QueueFull, match="2 requests wait and max_num_queued_reqs=2 leaves no room for 1 more") as told:
        engine.add_request([1], greedy(2), "c")
    assert told.value.reason == "queue_limit"
    assert isinstance(told.value, WorkbenchError) and not isinstance(told.value, UsageError), "it may be sent again"
    assert engine.stats()["num_refused"] == 1 and list(engine.requests) == ["a", "b"]
    trace = engine.step()
    assert {"request_id": "c", "reason": "queue_limit"} in trace.skipped
    assert [event.get("reason") for event in trace.inputs] == [None, None, "queue_limit"]
    assert trace.inputs[-1]["refused"]["request_id"] == "c"
    engine.add_request([1], greedy(2), "c")  # a runs now, so there is room again
    assert all(skip["reason"] != "queue_limit" for skip in engine.step().skipped)


def test_several_answers_queue_together_or_not_at_all() -> None:
    engine = open_engine(max_num_queued_reqs=3)
    engine.add_request([1], greedy(2))
    with pytest.raises(QueueFull, match="no room for 3 more"):
        engine.add_request([1], SamplingParams(n=3, max_tokens=1))
    assert len(engine.requests) == 1 and engine.stats()["num_refused"] == 3
    engine.add_request([1], SamplingParams(n=2, max_tokens=1))


def test_what_could_never_run_is_told_so_even_when_the_queue_is_full() -> None:
    engine = open_engine(max_num_queued_reqs=1)
    engine.add_request([1], greedy(2))
    with pytest.raises(UsageError, match="the prompt is empty"):
        engine.add_request([], greedy(2))


def test_a_prompt_longer_than_a_step_needs_chunks() -> None:
    sizes = {"max_num_batched_tokens": 8, "enable_chunked_prefill": False}
    engine = open_engine(**sizes)
    engine.add_request([1] * 8, greedy(1))
    with pytest.raises(
        UsageError, match="9 tokens and without chunked prefill it must fit one step of max_num_batched"
    ):
        engine.add_request([1] * 9, greedy(1))
    assert engine.step().finished
    open_engine(**{**sizes, "enable_chunked_prefill": True}).add_request([1] * 9, greedy(1))


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic", "prefill-first"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_runs_under_every_policy_replay_to_the_same_decisions(tmp_path: Path, batching: str, mode: str) -> None:
    """Refusals, priorities, waits on the clock and moved blocks among them."""
    sizes = {"num_kv_blocks": 9, "block_size": 3, "max_model_len": 28, "max_num_batched_tokens": 7, "max_num_seqs": 4}
    wait = {"max_wait_ms": 700.0} if batching == "dynamic" else {}
    policy = {"batching": batching, "preemption_mode": mode, "scheduling_policy": "priority", "max_num_queued_reqs": 4}
    engine = open_engine(**sizes, **policy, **wait)
    engine.more_may_come = True
    refused = 0
    with engine.record(tmp_path / "run.jsonl"):
        for number in range(60):
            try:
                engine.add_request([number % 40] * (1 + number % 7), greedy(1 + number % 9), priority=number % 3)
            except QueueFull:
                refused += 1
            engine.clock.advance(0.3)
            engine.step()
            if number == 40:
                engine.more_may_come = False
        while engine.has_unfinished():
            engine.step()
    steps = list(replay(tmp_path / "run.jsonl"))
    assert [step.differences() for step in steps] == [{}] * len(steps)
    assert [step.recorded.wake_time for step in steps] == [step.replayed.wake_time for step in steps]
    assert refused and sum(len(step.recorded.preempted) for step in steps) > 0
    assert any(step.recorded.wake_time for step in steps) == (batching == "dynamic")
