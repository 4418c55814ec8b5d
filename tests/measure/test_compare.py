"""Ratios to an earlier result, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from workbench.errors import UsageError
from workbench.measure.compare import compare, read_baseline


def result(benchmark="serve", rate=10.0, ttft=200.0, **more):
    return {
        "benchmark": benchmark,
        "schema_version": 1,
        "output_throughput": rate,
        "request_goodput": None,
        "p99_ttft_ms": ttft,
        "std_ttft_ms": 3.0,
        "completed": 4,
        "config": {"block_size": 16, "max_num_seqs": 8},
        "workload": {"kind": "random", "slo": {"ttft": 5.0}},
        "provenance": {"commit": "a", "date": "2024-01-01", "cpu": "x"},
        **more,
    }


def test_ratios_are_now_over_then():
    found = compare(result(rate=15.0, ttft=100.0), result())
    assert found["ratios"] == {"output_throughput": 1.5, "request_goodput": None, "p99_ttft_ms": 0.5}
    assert found["differs"] == {"config": {}, "workload": {}, "provenance": {}}


def test_nothing_is_divided_by_zero():
    assert compare(result(), result(ttft=0.0))["ratios"]["p99_ttft_ms"] is None
    assert compare(result(ttft=0.0), result())["ratios"]["p99_ttft_ms"] == 0


def test_what_differs_is_named_with_both_values():
    now = result(
        config={"block_size": 8, "new_option": True},
        workload={"kind": "random", "slo": {"ttft": 6.0}, "span": (1, 2)},
        provenance={"commit": "b", "date": "2025-01-01", "cpu": "x"},
    )
    then = result(workload={"kind": "random", "slo": {"ttft": 5.0}, "span": [1, 2]})
    assert compare(now, then)["differs"] == {
        "config": {"block_size": [16, 8], "max_num_seqs": [8, None], "new_option": [None, True]},
        "workload": {"slo": [{"ttft": 5.0}, {"ttft": 6.0}]},
        "provenance": {"commit": ["a", "b"]},
    }


def test_a_key_that_the_baseline_lacks_has_no_ratio():
    then = result()
    del then["p99_ttft_ms"], then["benchmark"]
    assert "p99_ttft_ms" not in compare(result(), then)["ratios"]


def test_points_of_a_sweep_are_paired_by_their_options():
    def sweep(*points):
        return {"benchmark": "sweep", "schema_version": 1, "points": list(points)}

    one, two = {"options": {"n": "1"}, **result()}, {"options": {"n": "2"}, **result(rate=30.0)}
    failed = {"options": {"n": "2"}, "error": "no memory"}
    found = compare(sweep(two, one), sweep(one, {**two, "output_throughput": 20.0}))["points"]
    assert [(point["options"]["n"], point["ratios"]["output_throughput"]) for point in found] == [
        ("2", 1.5),
        ("1", 1.0),
    ]
    found = compare(sweep(one, two), sweep(failed))["points"]
    assert [point["missing"] for point in found] == ["the baseline has no such point", "it failed, then or now"]
    with pytest.raises(UsageError, match="no sweep"):
        compare(sweep(one), {"schema_version": 1})


@pytest.mark.parametrize(("then", "words"), [(result("latency"), "latency"), (result(schema_version=9), "9")])
def test_other_kinds_of_results_are_not_compared(then, words):
    with pytest.raises(UsageError, match=words):
        compare(result(), then)


def test_files_that_are_no_result(tmp_path):
    file = tmp_path / "then.json"
    file.write_text(json.dumps(result()))
    assert read_baseline(file) == result()
    for text in ("", "[1]", '{"a": 1}', "\x00"):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"then\.json is no benchmark's result"):
            read_baseline(file)
