"""Notebook 02's exercises: the answers are the engine's own, and a rule of departure swapped in is asked."""

from __future__ import annotations

import pytest

from tests.engine.driver import Arrival, feed
from tests.engine.paged_fake import open_engine
from workbench.engine import policies
from workbench.lab.exercises import exercise

DEPARTS, LARGEST = exercise("02", "departs"), exercise("02", "largest-batch")
OWN = policies.departs
FERRY = [Arrival(30.0 * i, f"p{i}") for i in range(8)] + [Arrival(400.0 + i, f"q{i}") for i in range(10)]


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def boats(batching: str = "dynamic") -> list[tuple[float, int]]:
    """(when it left, how many were aboard) of each boat; an engine of its own, made now."""
    options = {"max_wait_ms": 300_000.0} if batching == "dynamic" else {}
    run = feed(open_engine(batching=batching, max_num_seqs=10, **options), FERRY, last_is_known=False)
    return [(trace.time, len(trace.scheduled)) for trace in run.traces]


def test_the_rule_is_the_engines_own() -> None:
    for case in DEPARTS.all_cases():
        assert policies.departs(*case.make()) is case.expected(*case.make()), case.name


@pytest.mark.parametrize("batching", ["dynamic", "continuous"])
def test_engines_made_meanwhile_ask_the_readers_rule(batching: str) -> None:
    before = boats(batching)
    with DEPARTS.use(DEPARTS.function) as used:
        assert boats(batching) == before
    assert used.who == "your function" and (used.calls > 0) == (batching == "dynamic")
    assert batching == "continuous" or before == [(300.0, 8), (409.0, 10)]


def test_a_static_engine_asks_with_an_infinite_wait() -> None:
    asked: list[float] = []

    def noting(queue_len: int, oldest_wait_s: float, max_num_seqs: int, max_wait_s: float) -> bool:
        asked.append(max_wait_s)
        return OWN(queue_len, oldest_wait_s, max_num_seqs, max_wait_s)

    with DEPARTS.use(noting):
        asked.clear()
        feed(open_engine(batching="static", max_num_seqs=10), FERRY[8:], last_is_known=False)
    assert asked and set(asked) == {float("inf")}


def test_it_is_this_rule_that_counts() -> None:
    """Another rule, another timetable; and the engine's own comes back."""
    with DEPARTS._swapped(lambda queue_len, *rest: queue_len >= 3):
        assert boats()[0] == (60.0, 3)
    assert policies.departs is OWN and boats()[0] == (300.0, 8)


def test_the_engine_made_before_keeps_its_own() -> None:
    engine = open_engine(batching="static", max_num_seqs=2)
    with DEPARTS.use(DEPARTS.function):
        assert engine.scheduler.batching.departs is OWN  # type: ignore[attr-defined]


def test_answers_lie_at_the_edge_of_the_limits() -> None:
    """One more would break a limit, so no case is satisfied by a smaller or a larger answer."""
    for case in LARGEST.all_cases():
        weights, kv, flops, bandwidth, peak, limit, room = case.make()
        batch = case.expected(*case.make())
        more = batch + 1
        assert (weights + more * kv) / bandwidth > limit or more * flops / peak > limit or more * kv > room
        fits = (weights + batch * kv) / bandwidth <= limit and batch * flops / peak <= limit and batch * kv <= room
        assert fits or batch == 0, case.name


def test_each_limit_decides_in_some_case() -> None:
    decided = set()
    for case in LARGEST.all_cases():
        weights, kv, flops, bandwidth, peak, limit, room = case.make()
        allowed = {
            "reading": (limit * bandwidth - weights) / kv,
            "arithmetic": limit * peak / flops,
            "memory": room / kv,
        }
        decided.add(min(allowed, key=lambda name: allowed[name]))
    assert decided == {"reading", "arithmetic", "memory"}
