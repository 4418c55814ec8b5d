"""Notebook 03's exercises against the engine: the answers are the engine's own, and a function swapped in is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.driver import Arrival, feed
from tests.engine.paged_fake import open_engine
from workbench.engine import policies
from workbench.engine.trace import StepTrace
from workbench.lab.exercises import exercise
from workbench.measure.occupancy import occupancy

SHARE, IDLE = exercise("03", "share"), exercise("03", "idle-seats")
ARRIVALS = [Arrival(0.0, "a", 14, 6), Arrival(0.0, "b", 3, 2), Arrival(1.0, "c", 9, 4), Arrival(14.0, "d", 16, 1)]


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def traces(**options: Any) -> list[StepTrace]:
    return feed(open_engine(max_num_batched_tokens=16, **options), ARRIVALS).traces


def shares(run: Sequence[StepTrace]) -> list[list[tuple[str, int]]]:
    return [[(item["request_id"], item["num_tokens"]) for item in trace.scheduled] for trace in run]


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 50), st.integers(1, 50), st.booleans())
def test_the_answer_is_the_engines_own(needs: list[int], budget: int, limit: int, whole: bool) -> None:
    limit = budget if whole else min(limit, budget)
    own = policies.share(needs, budget, limit, whole)
    assert SHARE.function(needs, budget, limit, whole) == SHARE.reference(needs, budget, limit, whole) == own


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("batching", ["continuous", "prefill-first"])
def test_an_engine_shares_by_the_readers_function(batching: str, chunked: bool) -> None:
    options = {"batching": batching, "enable_chunked_prefill": chunked}
    own, before = policies.share, shares(traces(**options))
    with SHARE.use(SHARE.function) as used:
        assert shares(traces(**options)) == before
    assert used.who == "your function" and used.calls >= len(before)
    assert policies.share is own
    # That it is this function that counts: it serves one request at a time.
    with SHARE._swapped(only_the_first):
        assert all(len(step) <= 1 for step in shares(traces(**options)))
    assert max(map(len, before)) > 1
    assert shares(traces(**options)) == before


def only_the_first(needs: list[int], budget: int, limit: int, whole: bool) -> list[int]:
    return [min(needs[0], budget, limit), *[0] * (len(needs) - 1)] if needs else []


def test_an_engine_refuses_a_share_that_breaks_the_budget() -> None:
    def generous(needs: list[int], budget: int, limit: int, whole: bool) -> list[int]:
        return list(needs)

    with SHARE._swapped(generous), pytest.raises(RuntimeError, match="share gave"):
        traces()


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic"])
def test_idle_seconds_are_the_idle_slots_of_steps_that_last_a_second(batching: str) -> None:
    """Between steps the clock may run on: then all seats are idle as well."""
    run = traces(batching=batching, max_num_seqs=3)
    pauses = sum(b.time - a.time - a.duration for a, b in pairwise(run))
    idle = occupancy(run, 3)["idle_slot_steps"] + 3 * pauses
    assert IDLE.function([asdict(trace) for trace in run], 3) == pytest.approx(idle)
    assert idle > pauses > 0
