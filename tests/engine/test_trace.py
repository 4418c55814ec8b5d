"""What a step leaves behind: the trace and its JSON, recordings, their replay, and the clock they are stamped with."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.engine.paged_fake import VOCAB_SIZE, PagedFake, greedy, open_engine
from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock, WallClock
from workbench.engine.engine import Engine
from workbench.engine.replay import replay
from workbench.engine.trace import StepTrace, read_run
from workbench.errors import UsageError, WorkbenchError
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

INTERFACE = ("step", "time", "duration", "scheduled", "skipped", "preempted", "finished", "blocks", "cached_tokens",
             "new_tokens", "flops", "bytes", "phases")  # fmt: skip


def busy_engine() -> Engine:
    """So small that requests are preempted again and again."""
    return open_engine((5,), num_kv_blocks=9, block_size=3, max_model_len=28, max_num_batched_tokens=7, max_num_seqs=4)


def busy_run(engine: Engine, seed: int) -> list[StepTrace]:
    """Random arrivals, aborts between steps and while a step runs, until all is done."""
    draw = Random(seed)
    traces = []

    def during(plan: StepPlan) -> None:
        if engine.requests and draw.random() < 0.1:
            engine.abort(draw.choice(list(engine.requests)))
        if draw.random() < 0.1:
            arrive()

    def arrive() -> None:
        length = draw.randint(1, 20)
        params = SamplingParams(max_tokens=draw.choice([None, draw.randint(1, 28 - length)]))
        engine.add_request([draw.randrange(VOCAB_SIZE) for _ in range(length)], params)

    engine.runner.during = during
    for _ in range(60):
        if draw.random() < 0.5:
            arrive()
        if engine.requests and draw.random() < 0.1:
            engine.abort(draw.choice(list(engine.requests)))
        engine.clock.advance(0.25)
        traces.append(engine.step())
    while engine.has_unfinished():
        traces.append(engine.step())
    engine.runner.during = lambda plan: None
    return traces


@pytest.mark.parametrize("seed", range(5))
def test_a_recorded_run_replays_to_the_same_decisions(tmp_path: Path, seed: int) -> None:
    engine = busy_engine()
    with engine.record(tmp_path / "run.jsonl", model="fake"):
        traces = busy_run(engine, seed)
    late = [event for trace in traces for event in trace.inputs if event.get("during_step")]
    assert sum(len(trace.preempted) for trace in traces) > 5 and late, "a run in which nothing happens shows nothing"
    steps = list(replay(tmp_path / "run.jsonl"))
    assert len(steps) == len(traces)
    assert [step.recorded for step in steps] == traces
    assert [step.differences() for step in steps] == [{}] * len(traces)


def test_a_replay_with_another_budget_parts_from_the_record(tmp_path: Path) -> None:
    engine = busy_engine()
    with engine.record(tmp_path / "run.jsonl"):
        busy_run(engine, 0)
    assert any(step.differences() for step in replay(tmp_path / "run.jsonl", max_num_batched_tokens=6))


def test_a_recording_may_begin_later(tmp_path: Path) -> None:
    """Steps that ran before it and requests aborted before it are no part of it."""
    engine = busy_engine()
    busy_run(engine, 0)
    engine.add_request([1, 2], greedy(3), "before")
    engine.step()
    engine.abort("before")
    with engine.record(tmp_path / "run.jsonl"):
        engine.add_request([1, 2], greedy(3), "after")
        while engine.has_unfinished():
            engine.step()
    steps = list(replay(tmp_path / "run.jsonl"))
    assert [step.differences() for step in steps] == [{}] * 3
    assert "before" not in (tmp_path / "run.jsonl").read_text()


def test_a_closed_recording_stays_closed_and_the_engine_goes_on(tmp_path: Path) -> None:
    engine = busy_engine()
    with engine.record(tmp_path / "run.jsonl"):
        engine.add_request([1, 2], greedy(3))
        engine.step()
    engine.step()
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2


def test_closed_recordings_leave_the_engine(tmp_path: Path) -> None:
    """Many recordings in a row must not make every later step slower; closing twice or out of order is no error."""
    engine = open_engine()
    heard: list[StepTrace] = []
    engine.listeners.append(heard.append)
    first, second = engine.record(tmp_path / "1.jsonl"), engine.record(tmp_path / "2.jsonl")
    assert engine.listeners == [heard.append, first, second]
    first.close()
    first.close()
    assert engine.listeners == [heard.append, second]
    engine.listeners.remove(second)
    second.close()
    engine.listeners.append(lambda trace: third.close())
    third = engine.record(tmp_path / "3.jsonl")
    engine.step()
    assert third not in engine.listeners and len(heard) == 1


def test_two_runs_leave_identical_logs() -> None:
    first, second = ([trace.to_json() for trace in busy_run(busy_engine(), 3)] for _ in range(2))
    assert first == second


def test_a_trace_survives_json() -> None:
    traces = busy_run(busy_engine(), 1)
    for trace in traces:
        text = trace.to_json()
        assert "\n" not in text
        assert StepTrace.from_json(text) == trace
        assert set(INTERFACE) <= set(json.loads(text))
    last = traces[-1]
    assert set(last.phases) == {"schedule", "prepare", "forward", "sample", "commit", "detokenize"}
    assert set(last.blocks) == {
        "allocated", "freed", "shared", "swapped_out", "swapped_in", "evicted", "free", "total"
    }  # fmt: skip
    assert [trace.step for trace in traces] == list(range(len(traces)))


def test_a_recording_from_before_moves_were_counted_is_read() -> None:
    text = busy_run(busy_engine(), 1)[0].to_json()
    old = {name: value for name, value in json.loads(text).items() if name != "moved_bytes"}
    assert StepTrace.from_json(json.dumps(old)).moved_bytes == 0
    with pytest.raises(WorkbenchError, match="moved_bytes=-1 must be a whole number from 0"):
        StepTrace.from_json(json.dumps({**old, "moved_bytes": -1}))


def test_blocks_of_all_traces_add_up() -> None:
    traces = busy_run(busy_engine(), 2)
    # What an abort after the last step frees is told by the step after it; here there is none.
    taken, returned = (sum(trace.blocks[name] for trace in traces) for name in ("allocated", "freed"))
    assert taken == returned > 50
    assert all(0 <= trace.blocks["free"] <= trace.blocks["total"] == 9 for trace in traces)


@pytest.mark.parametrize("text", ["", "not json\n", "[1]\n", '{"step": 0}\n'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.jsonl").write_text(text)
    with pytest.raises(WorkbenchError, match="is not a recorded run"):
        read_run(tmp_path / "other.jsonl")


def test_a_recording_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"schema_version": 99}\n')
    with pytest.raises(WorkbenchError, match="schema_version 99; this version reads 1"):
        read_run(tmp_path / "new.jsonl")


def test_times_come_from_the_clock() -> None:
    engine = open_engine()
    clock = engine.clock
    assert isinstance(clock, VirtualClock)

    def during(plan: StepPlan) -> None:
        clock.advance(0.5)

    engine.runner.during = during
    engine.add_request([1, 2, 3], greedy(3), "x")
    request = engine.requests["x"]
    clock.advance(2.0)
    traces = [engine.step() for _ in range(3)]
    assert [(trace.time, trace.duration) for trace in traces] == [(2.0, 0.5), (2.5, 0.5), (3.0, 0.5)]
    assert request.arrival_time == 0.0
    assert (request.first_scheduled_time, request.first_token_time, request.finish_time) == (2.0, 2.5, 3.5)


def test_an_arrival_time_may_be_given() -> None:
    engine = open_engine()
    request = engine.requests[engine.add_request([1], greedy(1), arrival_time=-1.5)]
    assert request.arrival_time == -1.5


def test_clocks() -> None:
    clock = VirtualClock()
    assert clock.now() == 0.0
    clock.advance(1.5)
    clock.advance(0.0)
    assert clock.now() == 1.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
    wall = WallClock()
    assert 0 <= wall.now() <= wall.now() < 60


def test_what_the_runner_measures_is_told() -> None:
    engine = open_engine()
    phases = {"prepare": 1.0, "forward": 2.0, "sample": 3.0}
    execute = engine.runner.execute
    engine.runner.execute = lambda plan: StepResult(execute(plan).token_ids, 7, 8, phases)
    engine.add_request([1], greedy(1))
    trace = engine.step()
    assert (trace.flops, trace.bytes) == (7, 8)
    assert phases.items() <= trace.phases.items()


def test_seeds_are_given_out_by_number_unless_named() -> None:
    """Equal prompts without a seed differ; the engine's own seed moves them all; a named seed holds everywhere."""

    def seeds(engine_seed: int) -> list[int]:
        engine = open_engine(seed=engine_seed)
        ids = [engine.add_request([1], SamplingParams(seed=seed)) for seed in (None, None, 9)]
        return [engine.requests[request_id].seed for request_id in ids]

    first, second, named = seeds(0)
    assert first != second and named == 9
    assert seeds(0) == [first, second, 9]
    assert not {first, second} & set(seeds(1)[:2])


def test_an_engine_without_sizes_is_refused() -> None:
    with pytest.raises(UsageError, match="num_kv_blocks and max_model_len"):
        Engine(EngineConfig(), PagedFake(16))


def test_reset_prefix_cache_says_that_nothing_is_cached() -> None:
    assert open_engine().reset_prefix_cache() is True
