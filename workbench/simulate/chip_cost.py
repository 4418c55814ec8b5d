"""The time of a step of a model on a chip, from its arithmetic and its traffic.

    linear    = max(FLOPs of the matrix products ÷ C, (weights + activations) ÷ B)
    attention = max(FLOPs of attention ÷ C,           keys and values ÷ B)
    step      = linear + attention + overhead of a step + overhead of a request × requests

C: peak × efficiency; B: bandwidth × efficiency. It is the roofline (Williams, Waterman and Patterson 2009) for the two
kinds of kernels that follow each other in every layer: while one computes, the other does not read, so the two add up.
A chip whose kernels read and compute one after the other in part (`Efficiency.overlap` below 1) pays so much of the
shorter half too.
Blocks copied within the pool are read and written at B; blocks that move to the host and back go through its link.

Left out: norms and rotation, tiles that are not full, several chips. Quantized weights are taken to be read at their
width and computed in ``compute_dtype``; unpacking them is free, and the head is as narrow as the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from workbench.errors import UsageError
from workbench.model.bits import bits_of
from workbench.model.config import ModelConfig
from workbench.model.cost import Chunk, StepCost, activations_moved, weights_read
from workbench.plan import StepPlan
from workbench.simulate.chips import THIS_CPU, Chip
from workbench.simulate.cost import Memory, Price
from workbench.sizing import cpu_pool_bytes


class ChipCost:
    """A `CostModel` of one model on one chip."""

    def __init__(
        self,
        model_config: ModelConfig,
        chip: Chip,
        dtype: str = "auto",
        weight_dtype: str | float | None = None,
        kv_dtype: str | float | None = None,
        compute_dtype: str | None = None,
    ) -> None:
        """``dtype``: of activations, and of all else unless told; ``auto`` is the chip's own.

        ``weight_dtype`` and ``kv_dtype``: names such as ``int4`` or ``q4_k``, or bits per number. ``compute_dtype``: in
        which the matrix products run. Raises UsageError for a dtype that is not known or that the chip lacks, and for
        models whose traffic is not counted yet (experts, latent attention).
        """
        self.model_config = model_config
        self.chip = chip
        self.dtype = chip.dtype if dtype == "auto" else dtype
        self.weight_dtype = self.dtype if weight_dtype is None else weight_dtype
        self.kv_dtype = self.dtype if kv_dtype is None else kv_dtype
        self.compute_dtype = self.dtype if compute_dtype is None else compute_dtype
        self.compute = chip.rate(self.compute_dtype) * chip.efficiency.compute
        self.bandwidth = chip.bandwidth * chip.efficiency.memory
        self.counts = StepCost(model_config, 0, model_config.kv_bytes_per_token(self.kv_dtype))
        weight_bits, activation_bytes = bits_of(self.weight_dtype), bits_of(self.dtype) / 8
        self.weight_bytes = {
            sampling: math.ceil(weights_read(model_config, sampling) * weight_bits / 8) for sampling in (False, True)
        }
        """That a step reads, by whether it samples: without, it leaves the head alone."""
        self.token_bytes = math.ceil(activations_moved(model_config, 1, 0) * activation_bytes)
        self.sample_bytes = math.ceil(activations_moved(model_config, 0, 1) * activation_bytes)

    def price(self, plan: StepPlan) -> Price:
        price = self.step(plan.scheduled)
        if plan.copies or plan.moves:
            block = (plan.pool.block_size if plan.pool else 0) * self.counts.kv_bytes_per_token
            seconds = 2 * block * len(plan.copies) / self.bandwidth
            seconds += block * len(plan.moves) / self.chip.host_bandwidth
            return price._replace(seconds=price.seconds + seconds, moved_bytes=block * len(plan.moves))
        return price

    def step(self, chunks: Sequence[Chunk]) -> Price:
        """Of what requests compute, without blocks that are copied or moved."""
        counts, efficiency = self.counts, self.chip.efficiency
        num_tokens = sampled = 0
        for chunk in chunks:
            num_tokens += chunk.num_tokens
            sampled += chunk.samples
        flops = counts.flops(chunks)
        linear_flops = num_tokens * counts.token_flops + sampled * counts.head_flops
        linear_bytes = num_tokens * self.token_bytes + sampled * self.sample_bytes
        if chunks:
            linear_bytes += self.weight_bytes[sampled > 0]
        kv_bytes = counts.kv_bytes(chunks)
        computing, reading = linear_flops / self.compute, linear_bytes / self.bandwidth
        scoring, fetching = (flops - linear_flops) / self.compute, kv_bytes / self.bandwidth
        seconds = max(computing, reading) + max(scoring, fetching)
        if efficiency.overlap < 1:
            seconds += (1 - efficiency.overlap) * (min(computing, reading) + min(scoring, fetching))
        seconds += efficiency.step_seconds + efficiency.request_seconds * len(chunks)
        return Price(seconds, flops, linear_bytes + kv_bytes)

    def memory(self, utilization: float) -> Memory:
        """Raises UsageError where the weights alone do not fit."""
        chip, weights = self.chip, self.model_config.weight_bytes(self.weight_dtype)
        room = chip.memory_bytes - weights
        pool = cpu_pool_bytes(room) if chip.name == THIS_CPU else int(chip.memory_bytes * utilization) - weights
        if pool <= 0:
            raise UsageError(
                f"{self.model_config.architecture} takes {weights / 1e9:.1f} GB in {self.weight_dtype} and "
                f"{utilization:.0%} of {chip.name} is {chip.memory_bytes * utilization / 1e9:.1f} GB: choose a larger "
                "chip, a smaller model or narrower weights"
            )
        return Memory(self.counts.kv_bytes_per_token, room, pool)

    def describe(self) -> dict[str, Any]:
        efficiency = self.chip.efficiency
        return {
            "kind": "chip",
            "formula": "max(linear FLOPs / C, (weights + activations) / B) + max(attention FLOPs / C, KV / B) "
            + ("" if efficiency.overlap == 1 else f"+ {1 - efficiency.overlap:.2g} * (the shorter ones) ")
            + "+ step_seconds + request_seconds * requests",
            "C": self.compute,
            "B": self.bandwidth,
            "model": self.model_config.architecture,
            "dtype": self.dtype,
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
            "compute_dtype": self.compute_dtype,
            "weight_bytes_read": self.weight_bytes[True],
            "kv_bytes_per_token": self.counts.kv_bytes_per_token,
            "overlap": efficiency.overlap,
            "step_seconds": efficiency.step_seconds,
            "request_seconds": efficiency.request_seconds,
        }

    def __repr__(self) -> str:
        facts = self.describe()
        lines = [f"cost model: {facts['model']} on {self.chip.name} ({self.chip.source})"]
        lines.append(f"  step = {facts['formula']}".replace(" + max(", "\n         + max("))
        lines.append(
            f"  C = {self.compute / 1e12:.4g} TFLOP/s ({self.chip.efficiency.compute:.0%} of the peak in "
            f"{self.compute_dtype}), B = {self.bandwidth / 1e9:.4g} GB/s ({self.chip.efficiency.memory:.0%})"
        )
        lines.append(
            f"  weights {self.weight_bytes[True] / 1e9:.3g} GB ({self.weight_dtype}), KV "
            f"{self.counts.kv_bytes_per_token:,} bytes a token ({self.kv_dtype}), "
            f"{facts['step_seconds'] * 1e3:g} ms a step, {facts['request_seconds'] * 1e6:g} µs a request"
        )
        return "\n".join(lines)
