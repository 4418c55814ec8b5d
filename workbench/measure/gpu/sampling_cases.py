"""Sampling from a large vocabulary, with the filters that people use."""

from __future__ import annotations

from functools import partial

import torch

import kernels
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale

OPTIONS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "plain": (1.0, 0, 1.0, 0.0),
    "top_k 50, top_p 0.9": (0.8, 50, 0.9, 0.0),
}
"""temperature, top_k, top_p, min_p"""


def cases(scale: Scale) -> list[Case]:
    shapes = scale.pick([(32, 151_936), (128, 151_936)], [(2, 64)], [(32, 151_936)])
    return [
        Case(f"sample {rows} × {vocab}, {name}", partial(_make, scale, rows, vocab, options), bytes=4.0 * rows * vocab)
        for rows, vocab in shapes
        for name, options in OPTIONS.items()
    ]


def _make(scale: Scale, rows: int, vocab: int, options: tuple[float, int, float, float]) -> dict[str, Call]:
    logits = 4 * drawn(rows, vocab, scale=scale, dtype=torch.float32)
    given = [[value] * rows for value in options]
    numbers = [(n + 0.5) / rows for n in range(rows)]

    def made(maker: str) -> torch.Tensor:
        return kernels.sample(logits, *given, numbers, maker=maker)  # type: ignore[arg-type]

    return {OURS: lambda: made("triton"), "torch": lambda: made("reference")}
