"""The driver and the policies that wait: it sleeps until a batch departs, and says whether company can still come."""

from __future__ import annotations

import pytest

from tests.engine.paged_fake import VOCAB_SIZE
from tests.measure.test_drive import asks, engine
from workbench.engine.trace import StepTrace
from workbench.measure.drive import drive
from workbench.measure.workload import Ask, Piece, Workload


def computing(traces: list[StepTrace]) -> list[tuple[float, int]]:
    """(time, requests) of the steps that compute."""
    return [(trace.time, len(trace.scheduled)) for trace in traces if trace.scheduled]


def test_static_nine_wait_for_the_tenth_that_is_to_come() -> None:
    told = drive(
        engine(batching="static", max_num_seqs=10), asks(*[(i / 10, 1) for i in range(9)], (300.0, 1)), VOCAB_SIZE
    )
    assert computing(told.traces) == [(300.0, 10)]
    assert len(told.traces) <= 10, "one look at the queue for each arrival, and sleep between them"


def test_static_does_not_wait_for_company_that_cannot_come() -> None:
    told = drive(engine(batching="static", max_num_seqs=10), asks((0.0, 1), (2.0, 1), (5.0, 1)), VOCAB_SIZE)
    assert computing(told.traces) == [(5.0, 3)]
    # Two users of a closed loop never fill a batch of ten; each asks again when he has his answer.
    loop = Workload(tuple(Ask((Piece(f"own {i}", 5),), 2) for i in range(6)), 0, {}, users=2)
    told = drive(engine(batching="static", max_num_seqs=10), loop, VOCAB_SIZE)
    assert computing(told.traces) == [(float(i), 2) for i in range(6)]


@pytest.mark.parametrize(
    ("arrivals", "leaves"), [([30.0 * i for i in range(8)], 300.0), ([20.0 * i for i in range(10)], 180.0)]
)
def test_dynamic_is_a_ferry_that_does_not_know_who_comes(arrivals: list[float], leaves: float) -> None:
    ferry = engine(batching="dynamic", max_num_seqs=10, max_wait_ms=300_000.0)
    told = drive(ferry, asks(*[(at, 1) for at in arrivals]), VOCAB_SIZE)
    assert computing(told.traces) == [(leaves, len(arrivals))]


def test_a_refused_request_counts_as_rejected() -> None:
    told = drive(engine(max_num_seqs=1, max_num_queued_reqs=2), asks(*[(0.0, 3)] * 5), VOCAB_SIZE)
    assert len(told.rejected) == 3 and "max_num_queued_reqs=2" in told.rejected[0].why
    assert sum(len(answer) == 3 for answer in told.answers.values()) == 2
