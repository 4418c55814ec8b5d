"""What this machine lets a workload reach at most: its read bandwidth and matrix rate, measured around the rounds."""

from __future__ import annotations

from typing import Any

import torch

from workbench.measure.hardware import matmul_flops, read_bandwidth
from workbench.measure.peers.workloads import Job
from workbench.model.config import ModelConfig
from workbench.model.cost import Share, StepCost, weights_read

CLASSES = ((6.5, "4-bit"), (12.0, "8-bit"), (24.0, "16-bit"), (float("inf"), "fp32"))
"""Bits per weight, scales and unquantized tensors included, up to which a system belongs to a class."""


def ceilings(threads: int) -> dict[str, float]:
    """``read_bandwidth`` (bytes/s) and ``matmul_flops`` (float32 FLOP/s) of so many threads, measured now."""
    before, device = torch.get_num_threads(), torch.device("cpu")
    torch.set_num_threads(threads)
    try:
        return {
            "read_bandwidth": read_bandwidth(device),
            "matmul_flops": matmul_flops(device, dtypes=(torch.float32,))["float32"],
        }
    finally:
        torch.set_num_threads(before)


def better(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The higher rate of each kind: no program makes a machine faster than it is."""
    return {name: max(rate, other[name]) for name, rate in one.items()}


def precision_class(weight_bytes: int, config: ModelConfig) -> str:
    """``fp32``, ``16-bit``, ``8-bit`` or ``4-bit``, by the bytes that a token's weights take."""
    bits = 8 * weight_bytes / weights_read(config, samples=True)
    return next(name for most, name in CLASSES if bits <= most)


def job_flops(job: Job, config: ModelConfig) -> int:
    """FLOPs of a job in which nothing is shared and nothing computed twice; a token that is not asked for needs no
    head."""
    shares = []
    for prompt, output in zip(job.prompts, job.output_lens, strict=True):
        shares.append(Share(0, len(prompt), samples=True))
        shares += [Share(len(prompt) + at, 1, samples=True) for at in range(output - 1)]
    return StepCost(config, 0, 0).flops(shares)


def of_limit(
    job: Job, figure: dict[str, Any], weight_bytes: int, config: ModelConfig, rates: dict[str, float]
) -> dict[str, Any] | None:
    """Which limit holds a workload, and what share of it a figure reached: of one stream the weights' bytes at the read
    bandwidth; of many requests and of a prefill the FLOPs at the float32 matrix rate. None where a head is shared: how
    much is computed is the system's choice there. ``limit`` has the figure's unit."""
    if job.name == "a":
        limit = rates["read_bandwidth"] / weight_bytes
        return {"by": "read bandwidth", "limit": limit, "share": figure["median"] / limit}
    if job.head:
        return None
    seconds = job_flops(job, config) / rates["matmul_flops"]
    limit = job.figure(seconds, 0.0)
    return {"by": "float32 matrix rate", "limit": limit, "share": figure["median"] / limit}
