"""Products with weights in C++; see `linear.h` for how and `kernels.reference.linear` for what."""

from __future__ import annotations

from typing import Any

import torch

from kernels.cpu.native import call, empty, hold
from kernels.cpu.panels import Panels, in_panels
from kernels.reference.linear import LARGEST
from kernels.reference.weights import BLOCK, FLOATS, Weight

_NUMBER = {name: number for number, name in enumerate(FLOATS)}
"""As in `formats.h`."""
TOGETHER = 3
"""As in `linear.h`."""


def linear(
    x: torch.Tensor, weight: Weight | Panels, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> torch.Tensor:
    """As `kernels.reference.linear`; a weight that is used often is best laid out once (`in_panels`).

    The rows of x may lie apart; their numbers must be neighbours.
    """
    result = empty("linear", (len(x), weight.shape[0]))
    panels = in_panels(weight)
    linear_into(result, x, panels, bias, activation_bits)
    hold(panels)
    return result


def linear_into(
    result: torch.Tensor, x: torch.Tensor, weight: Panels, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> None:
    """`linear` into rows that are there; they may lie apart. Raises ValueError for activations of another kind."""
    rows, into = len(x), weight.shape[1]
    if x.dtype != torch.float32 or x.shape[1] != into or (x.stride(1) != 1 and into > 1):
        raise ValueError(
            f"linear on a CPU wants float32 rows of {into} neighbours, not {x.dtype} {list(x.shape)} with strides "
            f"{x.stride()}"
        )
    if not weight.whole_numbers:
        call(
            "linear_floats", "iiippslisl",
            *_floats(weight), bias, x, x.stride(0), rows, result, result.stride(0),
        )  # fmt: skip
        return
    blocks = -(-into // BLOCK)
    numbers = empty("rounded", (rows, blocks * BLOCK), torch.int16)
    scales, sums = empty("rounded scales", (rows,)), empty("rounded sums", (rows + -rows % TOGETHER, blocks))
    call(
        "linear_whole", "iipiiippslipppisl",
        *_whole(weight), bias, x, x.stride(0), LARGEST[activation_bits], numbers, scales, sums, rows, result,
        result.stride(0),
    )  # fmt: skip


def embedding(weight: Weight | Panels, token_ids: torch.Tensor) -> torch.Tensor:
    """As `kernels.reference.embedding`."""
    panels = in_panels(weight)
    result = empty("embedding", (len(token_ids), weight.shape[1]))
    if panels.whole_numbers:
        call("embed_from_whole", "iipiiippip", *_whole(panels), token_ids, len(token_ids), result)
    else:
        call("embed_from_floats", "iiippip", *_floats(panels), token_ids, len(token_ids), result)
    hold(panels)
    return result


def _floats(weight: Panels) -> tuple[Any, ...]:
    return _NUMBER[weight.format], *weight.shape, weight.data


def _whole(weight: Panels) -> tuple[Any, ...]:
    return *weight.shape, weight.data, weight.bits, weight.group_blocks, weight.offsets, weight.scales
