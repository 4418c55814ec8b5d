"""``workbench simulate``: bench's keys, its questions, refusals by name. Times are modelled, so they may be judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main

TRACES = Path(__file__).parents[1] / "data/traces"
BASE = ("simulate", "--model", "qwen2.5-7b", "--chip", "h100", "--num-prompts", "6", "--input-len", "20:300",
        "--output-len", "2:9")  # fmt: skip


@pytest.fixture
def run(capsys):
    def run(*flags, status=0):
        assert main([*flags, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    def run(*flags):
        assert main([*flags]) == 2
        return capsys.readouterr().err

    return run


def test_every_key_of_bench_serve_but_what_was_measured(run, tmp_path) -> None:
    file = tmp_path / "result.json"
    result = run(*BASE, "--request-rate", "20", "--goodput", "ttft:500", "--output", str(file))
    for key in ("completed", "rejected", "request_throughput", "output_throughput", "total_token_throughput",
                "request_goodput", "benchmark", "schema_version", "config", "workload", "cost_model", "chip",
                "digest"):  # fmt: skip
        assert key in result, key
    for metric in ("ttft", "tpot", "itl", "e2el"):
        assert all(f"{kind}_{metric}_ms" in result for kind in ("mean", "median", "p99"))
    assert not {"provenance", "phases", "bookkeeping_share"} & set(result)
    assert result["completed"] == 6 and result["request_goodput"] == result["request_throughput"]
    assert result["chip"]["bandwidth"] == 3.35e12 and result["cost_model"]["weight_dtype"] == "bfloat16"
    again = run(*BASE, "--request-rate", "20", "--goodput", "ttft:500", "--compare", str(file))
    assert again.pop("compare")["ratios"]["p99_ttft_ms"] == 1.0
    assert again == result


def test_a_trace_is_served_to_its_end_unless_told_otherwise(run) -> None:
    flags = ("simulate", "--trace", str(TRACES / "mooncake_format.jsonl"), "--model", "qwen2.5-7b", "--chip", "h200")
    rows = len((TRACES / "mooncake_format.jsonl").read_text().splitlines())
    result = run(*flags, "--block-size", "512")
    assert result["completed"] + result["rejected"] == rows == result["workload"]["num_prompts"]
    assert result["config"]["block_size"] == 512
    assert run(*flags, "--num-prompts", "1")["workload"]["num_prompts"] == 1


def test_narrow_weights_and_other_assumptions_take_effect(run) -> None:
    base = run(*BASE)["median_tpot_ms"]
    assert run(*BASE, "--weight-dtype", "4.5")["median_tpot_ms"] < base
    assert run(*BASE, "--weight-dtype", "fp8_e4m3", "--compute-dtype", "fp8_e4m3")["median_tpot_ms"] < base
    assert run(*BASE, "--step-overhead-ms", "50")["median_tpot_ms"] > 50
    assert run(*BASE, "--memory-efficiency", "0.4", "--request-overhead-us", "9")["median_tpot_ms"] > base
    assert run(*BASE, "--kv-dtype", "int8")["config"]["num_kv_blocks"] >= run(*BASE)["config"]["num_kv_blocks"]


def test_what_if_and_the_highest_rate(run, capsys) -> None:
    result = run(*BASE, "--what-if", "max_num_batched_tokens=64")
    assert result["what_if"]["result"]["config"]["max_num_batched_tokens"] == 64
    assert result["what_if"]["parting"]["step"] == 0
    other = run(*BASE, "--request-rate", "20", "--what-if", "chip=l4")
    assert other["what_if"]["result"]["median_ttft_ms"] > other["median_ttft_ms"]
    assert run(*BASE, "--what-if", "seed=0")["what_if"]["parting"] is None
    found = run(*BASE, "--find-rate", "0.5", "--goodput", "ttft:20")
    assert found["workload"]["request_rate"] == found["highest_rate"]["rate"] and found["slo_attainment"] >= 0.5
    assert main([*BASE, "--what-if", "max_num_batched_tokens=64"]) == 0
    told = capsys.readouterr().out
    assert "simulated, not measured" in told and "the plans part at step 0" in told and "left out: budget" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("simulate", "--chip", "tpu"), "choose from a100-80, h100, h200, b200, l4, rtx4090, this-cpu"),
        (("simulate", "--chip", "h100", "--model", "gpt-9"), "'gpt-9' is not known: choose from"),
        ((*BASE, "--what-if", "seed=1", "--find-rate", "--goodput", "ttft:9"), "ask one at a time"),
        ((*BASE, "--what-if", "dance"), "'dance' is no OPTION=VALUE"),
        ((*BASE, "--what-if", "dance=1"), "is no option of the engine or the workload"),
        ((*BASE, "--what-if", "model=qwen3-8b"), "runs of one model"),
        ((*BASE, "--find-rate"), "asked for an SLO"),
        ((*BASE, "--find-rate", "--request-rate", "3"), "leave --request-rate"),
        ((*BASE, "--kv-dtype", "int7"), "'int7' is not known"),
        ((*BASE, "--chip", "l4", "--gpu-memory-utilization", "0.3"), "choose a larger chip"),
        ((*BASE, "--quantization", "fp8"), "not supported yet"),
    ],
)
def test_what_cannot_be_is_refused_by_name(refused, flags, told) -> None:
    assert told in refused(*flags)
