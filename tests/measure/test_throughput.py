"""Workloads and ``bench throughput``: the same requests for all, honest counts, peers that do the same work."""

from __future__ import annotations

import json

import pytest

from tests.model.tiny import make_tiny
from workbench.cli import main
from workbench.measure.workload import uniform_workload

KEYS = ("completed", "rejected", "request_throughput", "output_throughput", "total_token_throughput", "request_goodput",
        "schema_version", "config", "workload", "provenance")  # fmt: skip
PROVENANCE = ("commit", "dirty", "date", "device", "cpu", "threads", "torch", "triton", "python")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path)
    return path


def test_a_workload_is_its_seed():
    one, same, other = (uniform_workload(50, (3, 9), (2, 5), seed) for seed in (4, 4, 5))
    assert one == same != other
    assert one.prompts(100) == same.prompts(100)
    assert set(one.input_lens) == set(range(3, 10)) and set(one.output_lens) == set(range(2, 6))
    assert [len(p) for p in one.prompts(100)] == list(one.input_lens)
    assert {token for prompt in one.prompts(7) for token in prompt} == set(range(7))


def run(capsys, tiny, *flags):
    base = ["bench", "throughput", "--model", str(tiny), "--num-threads", "1", "--json"]
    assert main([*base, "--num-prompts", "6", "--input-len", "4:40", "--output-len", "2:9", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_result_has_the_fields_and_counts_every_token(capsys, tiny, tmp_path):
    file = tmp_path / "result.json"
    result = run(capsys, tiny, "--repeats", "3", "--seed", "3", "--output", str(file))
    expected = uniform_workload(6, (4, 40), (2, 9), 3)
    assert all(key in result for key in KEYS) and all(key in result["provenance"] for key in PROVENANCE)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        assert all(f"{kind}_{metric}_ms" in result for kind in ("mean", "median", "p99"))
    assert (result["completed"], result["rejected"]) == (6, 0)
    assert result["total_output_tokens"] == sum(expected.output_lens)
    assert result["total_input_tokens"] == sum(expected.input_lens)
    assert "peers" not in result
    # Three rounds of the same prompts: the cache is emptied before each.
    assert (result["prefix_cache_queries"], result["prefix_cache_hits"]) == (sum(expected.input_lens), 0)
    assert json.loads(file.read_text()) == result


def test_requests_that_cannot_fit_count_as_rejected(capsys, tiny):
    result = run(capsys, tiny, "--max-model-len", "30")
    expected = uniform_workload(6, (4, 40), (2, 9), 0)
    fits = [a + b <= 30 for a, b in zip(expected.input_lens, expected.output_lens, strict=True)]
    assert 0 < sum(fits) < 6, "the workload must have both kinds"
    assert (result["completed"], result["rejected"]) == (sum(fits), 6 - sum(fits))
    assert main(["bench", "throughput", "--model", str(tiny), "--input-len", "600", "--num-prompts", "2"]) == 1
    assert "max_model_len" in capsys.readouterr().err


def test_peers_give_the_same_answers_in_the_same_process(capsys, tiny):
    result = run(capsys, tiny, "--vs", "transformers")
    assert set(result["ratios"]) == {"generate", "generate_batch", "single_stream"}
    for name, peer in result["peers"].items():
        alone = name == "single_stream"
        assert peer["same_answers"] == (1 if alone else 6), name
        ours = peer["ours"] if alone else result["output_throughput"]
        assert result["ratios"][name] == pytest.approx(ours / peer["output_throughput"])
