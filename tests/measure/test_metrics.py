"""Serving metrics against numbers worked out by hand."""

from __future__ import annotations

import pytest

from workbench.engine.trace import StepTrace
from workbench.measure.metrics import serving_metrics


def step(number, time, duration, tokens, finished=(), adds=()):
    return StepTrace(
        step=number,
        time=time,
        duration=duration,
        scheduled=[],
        skipped=[],
        preempted=[],
        finished=[{"request_id": r, "reason": "length"} for r in finished],
        blocks={},
        cached_tokens=0,
        new_tokens=[{"request_id": r, "token_id": 7} for r in tokens],
        phases={"forward": 0.9 * duration, "schedule": 0.1 * duration},
        inputs=[
            {"add": {"request_id": r, "prompt_token_ids": [1] * length, "arrival_time": at}} for r, length, at in adds
        ],
    )


def test_two_requests_by_hand():
    traces = [
        step(0, 1.0, 1.0, ["a"], adds=[("a", 10, 0.0), ("b", 20, 0.5)]),
        step(1, 2.0, 2.0, ["a", "b"]),
        step(2, 4.0, 1.0, ["a"], finished=["a"]),
        step(3, 5.0, 3.0, ["b"], finished=["b"]),
    ]
    found = serving_metrics(traces, rejected=3)
    # a: tokens at 2, 4, 5; b: tokens at 4, 8. The run lasts from the arrival of a at 0 to 8.
    assert (found["completed"], found["rejected"], found["duration"]) == (2, 3, 8.0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 5)
    assert found["output_throughput"] == pytest.approx(5 / 8)
    assert found["total_token_throughput"] == pytest.approx(35 / 8)
    assert found["request_throughput"] == pytest.approx(2 / 8)
    assert found["mean_ttft_ms"] == pytest.approx((2.0 + 3.5) / 2 * 1e3)
    assert found["mean_tpot_ms"] == pytest.approx(((5 - 2) / 2 + (8 - 4) / 1) / 2 * 1e3)
    assert found["mean_itl_ms"] == pytest.approx((2 + 1 + 4) / 3 * 1e3), "gaps are pooled, not averaged by request"
    assert found["median_itl_ms"] == pytest.approx(2e3)
    assert found["p99_itl_ms"] == pytest.approx((2 + 0.98 * 2) * 1e3)
    assert found["mean_e2el_ms"] == pytest.approx((5.0 + 7.5) / 2 * 1e3)
    assert found["bookkeeping_share"] == pytest.approx(0.1)


def test_one_output_token_has_no_tpot():
    found = serving_metrics([step(0, 0.0, 1.0, ["a", "b"], finished=["a"], adds=[("a", 1, 0.0), ("b", 1, 0.0)]),
                             step(1, 1.0, 4.0, ["b"], finished=["b"])])  # fmt: skip
    assert found["mean_tpot_ms"] == pytest.approx(4e3), "only b counts"


def test_aborted_requests_do_not_count_as_completed():
    trace = step(0, 0.0, 1.0, ["a"], adds=[("a", 5, 0.0)])
    trace.finished = [{"request_id": "a", "reason": "abort"}]
    found = serving_metrics([trace])
    assert (found["completed"], found["total_output_tokens"]) == (0, 0)


def test_hit_rates_are_of_tokens_and_of_whole_blocks():
    traces = [step(number, float(number), 1.0, []) for number in range(3)]
    names = ("queries", "query_tokens", "hit_tokens", "query_blocks", "hit_blocks")
    traces[0].queried = dict(zip(names, (2, 30, 0, 6, 0), strict=True))
    traces[2].queried = dict(zip(names, (1, 10, 9, 2, 2), strict=True))
    found = serving_metrics(traces)
    assert (found["prefix_cache_queries"], found["prefix_cache_hits"]) == (40, 9)
    assert (found["prefix_cache_hit_rate"], found["prefix_cache_block_hit_rate"]) == (9 / 40, 2 / 8)
    off = serving_metrics([step(0, 0.0, 1.0, [])])
    assert off["prefix_cache_queries"] is off["prefix_cache_hit_rate"] is off["prefix_cache_block_hit_rate"] is None


def test_no_steps_is_all_zero():
    found = serving_metrics([])
    assert (found["completed"], found["duration"], found["output_throughput"], found["p99_itl_ms"]) == (
        0,
        0.0,
        0.0,
        0.0,
    )
