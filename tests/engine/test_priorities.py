"""Who goes first and who must give way: priorities, short prompts, aging, and how often a place may be lost."""

from __future__ import annotations

import pytest

from tests.engine.driver import Arrival, feed
from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.policies import AGING_S, AGING_TOKENS_PER_S, MAX_DISPLACED
from workbench.errors import UsageError


def order(run) -> list[str]:
    return sorted(run.requests, key=lambda name: run.requests[name].first_scheduled_time)


def test_the_lower_value_goes_first_and_equals_in_order_of_arrival() -> None:
    arrivals = [Arrival(0.0, name, priority=p) for name, p in (("a", 2), ("b", 0), ("c", -1), ("d", 0), ("e", 2))]
    assert order(feed(open_engine(scheduling_policy="priority", max_num_seqs=1), arrivals)) == list("cbdae")
    fcfs = [arrival._replace(priority=0) for arrival in arrivals]
    assert order(feed(open_engine(max_num_seqs=1), fcfs)) == list("abcde")


def test_short_prompts_go_first() -> None:
    arrivals = [Arrival(0.0, "long", 30), Arrival(0.0, "middle", 9), Arrival(0.0, "short", 2), Arrival(0.0, "too", 2)]
    run = feed(open_engine(scheduling_policy="shortest-prefill-first", max_num_seqs=1), arrivals)
    assert order(run) == ["short", "too", "middle", "long"]


@pytest.mark.parametrize("late", [AGING_S - 1, AGING_S + 1])
def test_waiting_makes_up_for_a_lower_priority(late: float) -> None:
    """A seat comes free after both have waited: the older has caught up one level when it came long enough before."""
    arrivals = [Arrival(0.0, "first", 1, 30, -9), Arrival(0.0, "old", priority=1), Arrival(late, "new", priority=0)]
    run = feed(open_engine(scheduling_policy="priority", max_num_seqs=1), arrivals)
    assert order(run)[1] == ("new" if late < AGING_S else "old")


def test_a_low_priority_does_not_starve_under_a_stream_of_high_ones() -> None:
    """The engine is full for ever; without aging the last would run only when the stream ends."""
    stream = [Arrival(float(i), f"h{i}", priority=0) for i in range(100)]
    run = feed(open_engine(scheduling_policy="priority", max_num_seqs=1), [*stream, Arrival(0.0, "low", priority=2)])
    assert run.requests["low"].first_token_time <= 2 * AGING_S + 3


def test_a_long_prompt_does_not_starve_under_a_stream_of_short_ones() -> None:
    stream = [Arrival(float(i), f"s{i}") for i in range(30)]
    sizes = {"max_model_len": 2000, "num_kv_blocks": 500, "max_num_batched_tokens": 2048}
    length = int(5 * AGING_TOKENS_PER_S)
    engine = open_engine(scheduling_policy="shortest-prefill-first", max_num_seqs=1, **sizes)
    run = feed(engine, [Arrival(0.0, "long", length), *stream])
    assert 5.0 <= run.requests["long"].first_token_time <= 8.0


def test_a_better_priority_takes_a_seat() -> None:
    """All seats are taken: it does not wait for one of them to end."""
    engine = open_engine(scheduling_policy="priority", max_num_seqs=2)
    arrivals = [Arrival(0.0, "a", 3, 20, 1), Arrival(0.0, "b", 3, 20, 1), Arrival(5.0, "urgent", 3, 2, 0)]
    run = feed(engine, arrivals)
    assert run.first_step("urgent").time == 5.0
    assert run.first_step("urgent").preempted == ["b"], "the last in rank gives way"
    assert run.requests["b"].num_displaced == 1
    for name, request in run.requests.items():
        assert request.output_token_ids == answer_alone(request.prompt_token_ids, request.params, 100)[0], name


def test_a_better_priority_takes_blocks() -> None:
    engine = open_engine(scheduling_policy="priority", num_kv_blocks=6, block_size=2)
    run = feed(engine, [Arrival(0.0, "a", 4, 8, 1), Arrival(0.0, "b", 4, 4, 1), Arrival(1.0, "urgent", 6, 1, 0)])
    assert run.first_step("urgent").time == 1.0
    assert run.first_step("urgent").preempted == ["b"]


def test_nobody_is_sent_away_in_vain() -> None:
    """Even without b there would be too few blocks, so b keeps them."""
    engine = open_engine(scheduling_policy="priority", num_kv_blocks=8, block_size=2)
    arrivals = [Arrival(0.0, "a", 10, 3, 0), Arrival(0.0, "b", 3, 2, 1), Arrival(1.0, "urgent", 12, 1, 0)]
    run = feed(engine, arrivals)
    assert sum(len(trace.preempted) for trace in run.traces) == 0


def test_nobody_is_sent_away_for_blocks_that_are_shared() -> None:
    """Half of b's blocks would only change hands, so without b there would still be too few."""
    engine = open_engine(
        enable_prefix_caching=True, scheduling_policy="priority", num_kv_blocks=11, max_model_len=44, max_num_seqs=3
    )
    head = list(range(16))
    engine.add_request([30] * 5, greedy(15), "first", priority=0)
    engine.step()
    engine.add_request([*head, 20, 21], greedy(20), "b", priority=10)
    engine.step()
    assert engine.pool.num_available == 4
    # Ten blocks, four of them b's: nine could be had.
    engine.add_request([*head, *[25] * 22], greedy(1), "urgent", priority=1)
    trace = engine.step()
    assert trace.preempted == [] and [item["request_id"] for item in trace.scheduled] == ["first", "b"]
    while engine.has_unfinished():
        engine.step()
        engine.pool.check()


def test_equals_never_take_each_others_place() -> None:
    engine = open_engine(scheduling_policy="priority", max_num_seqs=1)
    run = feed(engine, [Arrival(0.0, "a", 1, 9, 1), Arrival(1.0, "b", 1, 1, 1)])
    assert order(run) == ["a", "b"] and sum(len(trace.preempted) for trace in run.traces) == 0


def test_a_place_is_lost_a_bounded_number_of_times() -> None:
    """One urgent request after another: the victim makes progress each time and then keeps its place."""
    urgent = [Arrival(3.0 * i, f"u{i}", 1, 2, 0) for i in range(20)]
    engine = open_engine(scheduling_policy="priority", max_num_seqs=1)
    run = feed(engine, [Arrival(0.0, "low", 1, 12, 1), *urgent])
    low = run.requests["low"]
    assert low.num_displaced == low.num_preemptions == MAX_DISPLACED
    had = 0
    for trace in run.traces:
        if "low" in trace.preempted:
            assert had > 0, "it had nothing to show for its time"
            had = 0
        had += sum(new["request_id"] == "low" for new in trace.new_tokens)


@pytest.mark.parametrize(
    ("priority", "policy", "message"),
    [
        (1, "fcfs", "priority=1 has no effect without scheduling_policy='priority'"),
        (-1, "shortest-prefill-first", "priority=-1 has no effect"),
        (True, "priority", "priority=True must be a whole number"),
        (1.0, "priority", "priority=1.0 must be a whole number"),
        (10**400, "priority", "must lie from -1000000 to 1000000"),
    ],
)
def test_priorities_that_mean_nothing_are_refused(priority: object, policy: str, message: str) -> None:
    engine = open_engine(scheduling_policy=policy)
    with pytest.raises(UsageError, match=message):
        engine.add_request([1], greedy(1), priority=priority)
    assert not engine.has_unfinished()
