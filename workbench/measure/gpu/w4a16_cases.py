"""Products with 4-bit weights, from one row to thousands, in the layers of a model of 7 billion parameters.

Beside the same product with bfloat16 weights by cuBLAS, and beside bringing the weights to bfloat16 first. Where few
rows are multiplied the weights' bytes count, where many are, the arithmetic. The bytes of a case are those of 4-bit
weights, for all contenders.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

import kernels
from kernels.reference.int4_tiles import Int4Tiles, int4_tiles
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale

GROUP = 128
LAYERS = ((4096, 4096), (22016, 4096), (4096, 11008))
"""Outputs and inputs, of Llama-2-7B: what follows attention; gate and up; down."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
IN_EACH_LAYER = (1, 16, 64, 256, 4096)
"""Rows of all layers; the first has the whole sweep."""
DEQUANTIZED_FROM = 256
"""Rows from which dequantizing first is tried: below it is the same work for less."""


def cases(scale: Scale) -> list[Case]:
    layers = scale.pick(LAYERS, ((72, 160),), LAYERS[:1])
    rows = scale.pick(ROWS, (1, 20), (1, 16, 256, 4096))
    return [
        _case(scale, m, n, k) for place, (n, k) in enumerate(layers) for m in rows if place == 0 or m in IN_EACH_LAYER
    ]


def _case(scale: Scale, m: int, n: int, k: int) -> Case:
    moved = n * k / 2 + 4 * n * -(-k // GROUP) + 2 * m * (n + k)
    return Case(f"w4a16 {m} × {n} × {k}", partial(_make, scale, m, n, k), 2.0 * m * n * k, moved)


def _make(scale: Scale, m: int, n: int, k: int) -> dict[str, Call]:
    # 16 bits on a CPU too: the kernel takes no others.
    x, matrix = (drawn(rows, k, scale=scale, seed=rows, dtype=torch.bfloat16) for rows in (m, n))
    tiles = _tiles(scale, n, k)

    def made(maker: str) -> torch.Tensor:
        return kernels.w4a16_linear(x, tiles, maker=maker)

    found: dict[str, Call] = {OURS: lambda: made("triton"), "cuBLAS, bfloat16": lambda: F.linear(x, matrix)}
    if m >= DEQUANTIZED_FROM:
        found["torch: dequantize, then cuBLAS"] = lambda: made("reference")
    return found


def _tiles(scale: Scale, n: int, k: int) -> Int4Tiles:
    draw = torch.Generator(device=scale.device).manual_seed(0)
    shape = (n, -(-k // GROUP))
    q = torch.randint(0, 16, (n, k), generator=draw, device=scale.device)
    zero = torch.randint(4, 12, shape, generator=draw, device=scale.device)
    scales = torch.rand(shape, generator=draw, device=scale.device).div_(64).half()
    return int4_tiles(q, scales, zero, GROUP)
