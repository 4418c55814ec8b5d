"""The driver on a virtual clock, over a fake model whose steps take a second: every time can be worked out by hand."""

from __future__ import annotations

import pytest

from tests.engine.paged_fake import VOCAB_SIZE, PagedFake, answer_alone, greedy
from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock, WallClock
from workbench.engine.engine import Engine
from workbench.errors import UsageError, WorkbenchError
from workbench.measure.drive import drive, waits
from workbench.measure.lengths import Uniform
from workbench.measure.served import served_requests
from workbench.measure.shared_heads import chat
from workbench.measure.workload import Ask, Piece, Workload
from workbench.plan import StepPlan, StepResult


class SlowFake(PagedFake):
    """Each step takes ``seconds`` of the virtual clock."""

    def __init__(self, block_size, clock, seconds=1.0):
        super().__init__(block_size)
        self.clock, self.seconds = clock, seconds

    def execute(self, plan: StepPlan) -> StepResult:
        self.clock.advance(self.seconds)
        return super().execute(plan)


def engine(seconds=1.0, **options):
    clock = VirtualClock()
    sizes = {"num_kv_blocks": 64, "block_size": 4, "max_model_len": 60, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    config = EngineConfig(**{**sizes, **options})
    return Engine(config, SlowFake(config.block_size, clock, seconds), clock=clock, vocab_size=VOCAB_SIZE)


def asks(*pairs):
    """(arrival, output tokens), prompts of five tokens."""
    return Workload(tuple(Ask((Piece(f"own {i}", 5),), out, at) for i, (at, out) in enumerate(pairs)), 0, {})


def times(told):
    return [(one.arrival, one.ttft, one.e2el) for one in served_requests(told.traces)]


def test_an_open_loop_is_timed_from_when_a_request_was_due():
    # Steps end at 1, 2, 3, 4. The second request is due at 1.5, while step 2 runs: it is sent at 2 and its first token
    # comes at 3, 1.5 s after it was due.
    told = drive(engine(), asks((0.0, 4), (1.5, 1)), VOCAB_SIZE)
    assert times(told) == [(0.0, 1.0, 4.0), (1.5, 1.5, 1.5)]
    assert told.arrivals == {0: 0.0, 1: 1.5}


def test_an_idle_engine_waits_for_the_next_arrival_and_makes_no_empty_steps():
    told = drive(engine(), asks((2.5, 1), (10.0, 2)), VOCAB_SIZE)
    assert times(told) == [(2.5, 1.0, 1.0), (10.0, 1.0, 2.0)]
    assert [trace.time for trace in told.traces] == [2.5, 10.0, 11.0]


def test_arrivals_are_served_in_the_order_of_their_times():
    told = drive(engine(max_num_seqs=1), asks((3.0, 1), (0.5, 1), (0.5, 1)), VOCAB_SIZE)
    assert told.arrivals == {1: 0.5, 2: 0.5, 0: 3.0} and list(told.arrivals) == [1, 2, 0]


def test_a_run_starts_at_the_clock_as_it_stands():
    one = engine()
    one.clock.advance(100.0)
    assert times(drive(one, asks((2.0, 1)), VOCAB_SIZE)) == [(102.0, 1.0, 1.0)]


def test_a_closed_loop_asks_when_its_user_is_free():
    # Two users. Users start with requests of 1 and 3 tokens; the first is free at 1 and asks again, done at 3.
    told = drive(engine(), asks((0, 1), (0, 3), (0, 2), (0, 1)).with_users(2), VOCAB_SIZE)
    assert times(told) == [(0.0, 1.0, 1.0), (0.0, 1.0, 3.0), (1.0, 1.0, 2.0), (3.0, 1.0, 1.0)]
    assert max(trace.num_running for trace in told.traces) <= 2


def test_waiting_at_a_concurrency_limit_is_part_of_the_latency():
    # All due at 0 and one at a time: the third starts when two seconds have gone by, and they count.
    told = drive(engine(), asks((0, 1), (0, 1), (0, 1)), VOCAB_SIZE, max_concurrency=1)
    assert times(told) == [(0.0, 1.0, 1.0), (0.0, 2.0, 2.0), (0.0, 3.0, 3.0)]


def test_what_the_engine_refuses_is_rejected_with_its_reason_and_the_rest_goes_on():
    workload = Workload(tuple(Ask((Piece(f"own {i}", size),), 2) for i, size in enumerate((5, 70, 6))), 0, {})
    for limited in (workload, workload.with_users(1)):
        told = drive(engine(), limited, VOCAB_SIZE)
        assert sorted(told.answers) == [0, 2]
        (lost,) = told.rejected
        assert lost.index == 1 and "max_model_len=60" in lost.why


def test_a_chat_sends_the_answers_back_after_think_time():
    workload = chat(1, 3, 2, Uniform(3, 3), Uniform(2, 2), seed=0, think_time=5.0)
    told = drive(engine(), workload, VOCAB_SIZE)
    # A turn takes two steps, then its user thinks for five seconds.
    assert [one.arrival for one in served_requests(told.traces)] == [0.0, 7.0, 14.0]
    for index in range(3):
        prompt = workload.prompt(index, VOCAB_SIZE, told.answers)
        assert len(prompt) == workload.input_len(index)
        added = [event["add"]["prompt_token_ids"] for trace in told.traces for event in trace.inputs if "add" in event]
        assert added[index] == prompt


def test_a_rejected_turn_takes_the_turns_after_it_along():
    workload = chat(2, 5, 0, Uniform(8, 8), Uniform(4, 4), seed=0)
    told = drive(engine(max_model_len=30), workload, VOCAB_SIZE)
    # Turns have 8, 20, 32, … prompt tokens: the third is too long, the fourth and fifth have nothing to follow on.
    assert sorted(lost.index for lost in told.rejected) == [4, 5, 6, 7, 8, 9]
    assert sum("follows on" in lost.why for lost in told.rejected) == 4
    assert len(told.answers) == 4


def test_answers_are_those_of_each_request_alone():
    one = engine(max_num_seqs=2, num_kv_blocks=9)
    workload = asks(*((i * 0.7, 3 + i % 5) for i in range(12)))
    told = drive(one, workload, VOCAB_SIZE)
    one.pool.check()
    assert one.pool.num_available == 9 and not one.has_unfinished()
    added = [event["add"] for trace in told.traces for event in trace.inputs if "add" in event]
    for index, event in enumerate(added):
        params = greedy(workload.asks[index].output_len, ignore_eos=True)
        seed = event["params"]["seed"]
        assert told.answers[index] == answer_alone(event["prompt_token_ids"], params, 60, seed=seed)[0]


def test_the_same_workload_gives_the_same_run():
    one, two = (drive(engine(max_num_seqs=2), asks((0, 4), (0.5, 2), (0.5, 3)), VOCAB_SIZE) for _ in range(2))
    assert one.traces == two.traces


def test_an_error_leaves_the_engine_empty():
    one = engine()

    def fail(plan):
        raise KeyboardInterrupt

    one.runner.during = fail
    with pytest.raises(KeyboardInterrupt):
        drive(one, asks((0, 4), (0, 4)), VOCAB_SIZE)
    assert not one.has_unfinished() and one.pool.num_available == 64


@pytest.mark.parametrize("users", [None, 1])
def test_a_request_that_is_aborted_makes_room_for_the_next(users):
    one = engine()
    one.listeners.append(lambda trace: trace.step == 1 and one.abort("0"))
    workload = asks((0, 9), (0, 1)) if users is None else asks((0, 9), (0, 1)).with_users(users)
    told = drive(one, workload, VOCAB_SIZE, max_concurrency=1 if users is None else None)
    assert [len(answer) for answer in told.answers.values()] == [2, 1]
    assert [served.reason for served in served_requests(told.traces)] == ["abort", "length"]


def test_a_chat_in_a_closed_loop_never_has_more_talks_going_than_users():
    workload = chat(3, 2, 0, Uniform(3, 3), Uniform(2, 2), seed=0, think_time=1.0).with_users(2)
    told = drive(engine(), workload, VOCAB_SIZE)
    assert len(told.answers) == 6 and max(trace.num_running for trace in told.traces) == 2
    # The third user's first question goes before the second turns: those who have waited longest come first.
    assert told.arrivals == {0: 0.0, 1: 0.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0}


def test_an_engine_that_holds_back_for_good_is_told_and_not_waited_for():
    one = engine()
    one.scheduler.plan = lambda now: StepPlan()
    one.scheduler.wake_time = lambda now: float("inf")
    with pytest.raises(WorkbenchError, match="holds them back for good"):
        drive(one, asks((0, 1)), VOCAB_SIZE)


def test_an_engine_that_holds_back_is_asked_again_at_the_next_arrival():
    """A static batch of two runs nothing until both are there."""
    told = drive(engine(batching="static", max_num_seqs=2), asks((0, 1), (6, 1)), VOCAB_SIZE)
    held = [trace.time for trace in told.traces if not trace.scheduled]
    assert held == [0.0], "once, not over and over"
    assert times(told) == [(0.0, 7.0, 7.0), (6.0, 1.0, 1.0)]


def test_wrong_use_is_refused():
    one = engine()
    with pytest.raises(UsageError, match="max_concurrency=0"):
        drive(one, asks((0, 1)), VOCAB_SIZE, max_concurrency=0)
    with pytest.raises(UsageError, match="closed loop of 2"):
        drive(one, asks((0, 1)).with_users(2), VOCAB_SIZE, max_concurrency=1)
    one.add_request([1, 2])
    with pytest.raises(UsageError, match="unfinished"):
        drive(one, asks((0, 1)), VOCAB_SIZE)


def test_a_wall_clock_is_slept_through():
    clock = WallClock()
    before = clock.now()
    waits(clock)(0.02)
    assert clock.now() - before >= 0.02
