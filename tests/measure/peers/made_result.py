"""A result of ``bench peers`` made up from figures, in the form that `run` gives."""

from __future__ import annotations

from typing import Any

from workbench.measure.peers.workloads import jobs

PRECISIONS = {"none": "fp32", "w8a16": "8-bit", "w4a16": "4-bit", "transformers": "fp32", "transformers-batch": "fp32",
              "vllm-cpu": "fp32", "llama.cpp-f16": "16-bit", "llama.cpp-q8_0": "8-bit",
              "llama.cpp-q4_1": "4-bit"}  # fmt: skip
OURS = ("none", "w8a16", "w4a16")


def made_result(names: str = "abcd", systems: tuple[str, ...] = tuple(PRECISIONS)) -> dict[str, Any]:
    """Every figure differs; those of ``a`` and ``c`` have limits just above them, far above them and none."""
    asked = jobs(list(names), 100, 0)
    results: dict[str, dict[str, Any]] = {}
    for job in asked:
        results[job.name] = {}
        for number, name in enumerate(systems):
            median = 11.5 * (number + 1) * (1 if job.name != "c" else 20)
            limit = {"by": "x", "limit": median * (1.1, 3.0)[number % 2], "share": 1 / (1.1, 3.0)[number % 2]}
            results[job.name][name] = {
                "median": median, "low": median * 0.93, "high": median * 1.04, "rounds": [median], "seconds": [1.0],
                "first_seconds": [0.1], "whole": 20.0, "of_limit": limit if job.name in "ac" else None,
            }  # fmt: skip
    described = {
        name: {"package": "x", "ours": name in OURS, "precision": PRECISIONS[name], "weight_bytes": 1, "threads": 2,
               "version": "1.2", "kv_cache": "float16", "context": "one", "kl": None if name == "vllm-cpu" else 2.5e-3,
               "equal_top": 0.9, "equal_tokens": 0.75, "load_seconds": 1.0, "idle_cpu": 0.0, "error": None}
        for name in systems
    }  # fmt: skip
    pairs = [(a, b) for a in systems if a in OURS for b in systems if b not in OURS]
    return {
        "benchmark": "peers",
        "interrupted": False,
        "systems": described | {"fast": {"error": "quantization='fast' is not supported yet"}},
        "workload": {job.name: job.describe() for job in asked},
        "results": results,
        "ratios": {f"{job.name}/{a}/{b}": 1.25 for job in asked for a, b in pairs},
        "equal_quality": [
            {"ours": a, "peer": b, "precision": PRECISIONS[a]} for a, b in pairs if PRECISIONS[a] == PRECISIONS[b]
        ],
        "ceilings": {"used": {"read_bandwidth": 20e9, "matmul_flops": 120e9}},
        "others": 0.3,
        "loaded": "together",
        "config": {"rounds": 3},
        "provenance": {"commit": "abc"},
    }
