"""The pure functions that policies consist of: when a batch departs, who gets how much, who goes before whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engine import policies
from workbench.engine.policies import departs, share
from workbench.engine.request import Request
from workbench.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("queue", "waited", "leaves"),
    [(1, 0.0, False), (9, 299.9, False), (10, 0.0, True), (11, 0.0, True), (8, 300.0, True), (1, 301.0, True)],
)
def test_the_ferry_of_ten_seats_and_five_minutes(queue: int, waited: float, leaves: bool) -> None:
    assert departs(queue, waited, 10, 300.0) is leaves


def test_a_static_batch_waits_for_ever_and_a_patience_of_nothing_does_not_wait() -> None:
    assert not departs(9, 1e9, 10, math.inf)
    assert departs(1, 0.0, 10, 0.0)


@pytest.mark.parametrize(
    ("needs", "budget", "limit", "whole", "shares"),
    [
        ([1, 1, 1], 8, 8, False, [1, 1, 1]),
        ([1, 20, 5], 8, 8, False, [1, 7, 0]),
        ([1, 20, 5], 8, 4, False, [1, 4, 3]),
        ([1, 20, 5], 32, 4, False, [1, 4, 4]),
        ([], 8, 8, False, []),
        ([1, 1, 1], 2, 2, False, [1, 1, 0]),
        # Whole prompts: who does not fit waits, and so does who stands behind.
        ([1, 7, 1], 8, 8, True, [1, 7, 0]),
        ([1, 8, 1], 8, 8, True, [1, 0, 0]),
        ([8, 1], 8, 8, True, [8, 0]),
        # What no step could take whole is cut.
        ([1, 9, 1], 8, 8, True, [1, 7, 0]),
    ],
)
def test_shares(needs: list[int], budget: int, limit: int, whole: bool, shares: list[int]) -> None:
    assert share(needs, budget, limit, whole) == shares


@given(st.lists(st.integers(1, 40)), st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_shares_spend_the_budget_in_order(needs: list[int], budget: int, limit: int, whole: bool) -> None:
    limit = min(limit, budget)
    shares = share(needs, budget, limit, whole)
    assert len(shares) == len(needs) and sum(shares) <= budget
    assert all(0 <= part <= min(need, limit) for part, need in zip(shares, needs, strict=True))
    assert not needs or shares[0] > 0, "the first is always served"
    served = [part > 0 for part in shares]
    assert served == sorted(served, reverse=True), "nobody overtakes one who got nothing"
    if not whole:
        assert sum(shares) == min(budget, sum(min(need, limit) for need in needs)), "nothing is left that could be used"


def request(priority: int = 0, arrival: float = 0.0, prompt: int = 1, number: int = 0) -> Request:
    made = Request(str(number), [1] * prompt, SamplingParams(), max_num_tokens=99, arrival_time=arrival)
    made.priority = priority
    return made


arrivals = st.integers(0, 1000).map(lambda tenths: tenths / 10)
requests = st.builds(request, st.integers(-5, 5), arrivals, st.integers(1, 500))


@given(requests, requests, st.floats(0, 1e4))
def test_a_rank_says_at_all_times_who_is_more_urgent(first: Request, second: Request, later: float) -> None:
    """Against the plain meaning of aging: waiting takes off what a lower priority or a longer prompt puts on."""
    now = max(first.arrival_time, second.arrival_time) + later

    def by_priority(r: Request) -> float:
        return r.priority - (now - r.arrival_time) / policies.AGING_S

    def by_length(r: Request) -> float:
        return r.num_prompt_tokens - (now - r.arrival_time) * policies.AGING_TOKENS_PER_S

    for name, urgency in (("priority", by_priority), ("shortest-prefill-first", by_length)):
        rank = policies.RANKS[name]
        if abs(urgency(first) - urgency(second)) > 1e-6:
            assert (rank(first) < rank(second)) == (urgency(first) < urgency(second)), name


def test_first_come_is_the_same_for_all() -> None:
    assert policies.RANKS["fcfs"](request(3, 9.0, 7)) == policies.RANKS["fcfs"](request())


def test_a_place_is_lost_only_to_a_better_priority_and_not_often() -> None:
    high, low, old = request(0, 1.0), request(1, 1.0), request(1, -20.0)
    for one in (high, low, old):
        one.rank = (policies.by_priority(one), 0)
    assert policies.may_displace(high, low) and not policies.may_displace(low, high)
    assert not policies.may_displace(high, old), "it has waited for what it has"
    low.num_displaced = policies.MAX_DISPLACED
    assert not policies.may_displace(high, low)
