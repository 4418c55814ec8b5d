"""Queue time, goodput, percentiles, occupancy and KV use against numbers worked out by hand."""

from __future__ import annotations

import pytest

from tests.engine.paged_fake import VOCAB_SIZE
from tests.measure.test_drive import asks, engine
from tests.measure.test_metrics import step
from workbench.errors import UsageError
from workbench.measure.drive import drive
from workbench.measure.metrics import serving_metrics, summary
from workbench.measure.occupancy import occupancy
from workbench.measure.served import served_requests
from workbench.measure.slo import Slo, parse_slo
from workbench.outputs import RequestMetrics


def three_requests():
    """a: due 0, tokens at 2, 4, 5. b: due 0.5, tokens at 4, 8. c: due 7, one token at 8."""
    traces = [
        step(0, 1.0, 1.0, ["a"], adds=[("a", 10, 0.0), ("b", 20, 0.5)]),
        step(1, 2.0, 2.0, ["a", "b"]),
        step(2, 4.0, 1.0, ["a"], finished=["a"]),
        step(3, 5.0, 3.0, ["b", "c"], finished=["b", "c"], adds=[("c", 5, 7.0)]),
    ]
    for trace, scheduled in zip(traces, (["a"], ["a", "b"], ["a"], ["b", "c"]), strict=True):
        trace.scheduled = [
            {"request_id": r, "num_tokens": 4, "num_computed_tokens": 0, "kind": "prefill"} for r in scheduled
        ]
    return traces


def test_queue_time_ends_where_the_first_step_has_been_planned():
    # Steps take a tenth of their time to plan: a starts at 1.1, b at 2.2, c at 5.3 (before it was due: driven by hand).
    a, b, c = served_requests(three_requests())
    assert (a.queue, b.queue, c.queue) == (pytest.approx(1.1), pytest.approx(1.7), pytest.approx(-1.7))
    assert serving_metrics(three_requests())["mean_queue_ms"] == pytest.approx(1100 / 3)


def test_times_of_each_request():
    a, b, c = served_requests(three_requests())
    assert (a.ttft, a.tpot, a.itl, a.e2el) == (2.0, 1.5, [2.0, 1.0], 5.0)
    assert (b.ttft, b.tpot, b.itl, b.e2el) == (3.5, 4.0, [4.0], 7.5)
    assert (c.ttft, c.tpot, c.itl, c.e2el) == (1.0, None, [], 1.0)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (["ttft:2000"], 2),  # a is on the limit, and that is within it; b is late; c is quick
        (["ttft:1999"], 1),
        (["tpot:1500"], 2),  # c has no TPOT and cannot break its limit
        (["e2el:7500"], 3),
        (["ttft:4000", "tpot:1500"], 2),  # all limits, not any
        (["ttft:900", "tpot:10"], 0),
    ],
)
def test_goodput_counts_requests_within_every_limit(limits, good):
    # The run lasts from 0 to 8. Two rejected requests have missed whatever the limits are.
    found = serving_metrics(three_requests(), rejected=2, slo=parse_slo(limits))
    assert found["request_goodput"] == pytest.approx(good / 8)
    assert found["slo_attainment"] == pytest.approx(good / 5)
    assert found["slo"] == {name: float(ms) for name, ms in (limit.split(":") for limit in limits)}


def test_without_an_slo_there_is_no_goodput():
    found = serving_metrics(three_requests(), rejected=1)
    assert (found["request_goodput"], found["slo"], found["slo_attainment"]) == (None, None, None)


def test_an_aborted_request_is_not_good():
    traces = three_requests()
    traces[2].finished = [{"request_id": "a", "reason": "abort"}]
    found = serving_metrics(traces, slo=Slo(ttft=1e9))
    assert found["request_goodput"] == pytest.approx(2 / 8) and found["slo_attainment"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "limits", [[], ["itl:5"], ["ttft"], ["ttft:x"], ["ttft:0"], ["ttft:inf"], ["tpot:1", "tpot:2"]]
)
def test_limits_that_mean_nothing_are_refused(limits):
    with pytest.raises(UsageError, match="goodput"):
        parse_slo(limits)


def test_percentiles_lie_between_the_values():
    # 1 … 5 s; the 90th percentile is 0.9 · 4 = 3.6 steps from the first: 4.6 s.
    found = summary("x", [5.0, 1.0, 4.0, 2.0, 3.0], (50, 90, 99.5))
    assert (found["p50_x_ms"], found["p90_x_ms"]) == (pytest.approx(3000), pytest.approx(4600))
    assert found["p99.5_x_ms"] == pytest.approx(4980) and found["p99_x_ms"] == pytest.approx(4960)
    assert found["std_x_ms"] == pytest.approx(2**0.5 * 1000)
    assert found["mean_x_ms"] == found["median_x_ms"] == pytest.approx(3000)


def test_slots_and_blocks_by_hand():
    # Batches of 1, 2, 1, 2 in four slots: 3 + 2 + 3 + 2 = 10 of 16 slots are idle. Four tokens for each request.
    traces = three_requests()
    for trace, free in zip(traces, (6, 2, 5, 10), strict=True):
        trace.blocks = {"free": free, "total": 10}
    found = occupancy(traces, max_num_seqs=4)
    assert (found["idle_slot_steps"], found["idle_slot_share"]) == (10, 10 / 16)
    assert (found["mean_batch_size"], found["max_batch_size"], found["mean_batched_tokens"]) == (1.5, 2, 6.0)
    # In use: 0.4, 0.8, 0.5, 0.
    assert found["mean_kv_usage"] == pytest.approx(0.425) and found["peak_kv_usage"] == pytest.approx(0.8)
    assert serving_metrics(traces, max_num_seqs=4).items() >= found.items()


def test_what_is_only_cached_is_not_in_use():
    traces = three_requests()
    for trace, (free, cached) in zip(traces, ((6, 0), (2, 4), (0, 5), (1, 9)), strict=True):
        trace.blocks = {"free": free, "cached": cached, "total": 10}
    found = occupancy(traces)
    assert found["mean_kv_usage"] == pytest.approx((0.4 + 0.4 + 0.5 + 0) / 4) and found["peak_kv_usage"] == 0.5


def test_what_is_not_known_is_none():
    found = occupancy(three_requests())
    assert (found["idle_slot_steps"], found["idle_slot_share"], found["mean_kv_usage"]) == (None, None, None)
    assert set(occupancy([], 4).values()) == {None, 0}


def test_an_id_may_be_used_again():
    traces = [
        step(0, 0.0, 1.0, ["a"], finished=["a"], adds=[("a", 5, 0.0)]),
        step(1, 9.0, 1.0, ["a"], finished=["a"], adds=[("a", 6, 8.0)]),
    ]
    found = serving_metrics(traces)
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (2, 11, 2)
    assert found["mean_ttft_ms"] == pytest.approx(1500)


def test_a_request_from_before_is_left_out():
    assert serving_metrics([step(0, 0.0, 1.0, ["z"], finished=["z"])])["completed"] == 0


def test_an_unfinished_request_is_not_completed():
    found = serving_metrics(three_requests()[:3], slo=Slo(ttft=1e9))
    assert found["completed"] == 1 and found["slo_attainment"] == pytest.approx(1 / 2)


def test_traces_and_requests_tell_the_same_times():
    one = engine(max_num_seqs=1)
    requests = {}
    add = one.add_request

    def remember(*args, **more):
        name = add(*args, **more)
        requests[name] = one.requests[name]
        return name

    one.add_request = remember
    told = drive(one, asks((0.0, 3), (0.5, 1), (1.2, 4)), VOCAB_SIZE)
    assert len(requests) == 3
    for served in served_requests(told.traces):
        known = RequestMetrics.of(requests[served.request_id])
        for ours, engines in (("queue", "queue"), ("ttft", "ttft"), ("tpot", "tpot"), ("e2el", "e2e")):
            assert getattr(served, ours) == pytest.approx(getattr(known, engines)), ours
