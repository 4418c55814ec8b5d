"""Products with weights in C++; see `linear.cpp` for how and `kernels.reference.linear` for what."""

from __future__ import annotations

import torch

from kernels.cpu.native import call, empty
from kernels.reference.linear import LARGEST
from kernels.reference.weights import BLOCK, FORMATS, Weight

_NUMBER = {name: number for number, name in enumerate(FORMATS)}
"""As in `formats.h`."""
TOGETHER = 24
"""As in `linear.h`."""


def linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> torch.Tensor:
    """As `kernels.reference.linear`. The rows of x may lie apart; their numbers must be neighbours."""
    result = empty("linear", (len(x), weight.shape[0]))
    linear_into(result, x, weight, bias, activation_bits)
    return result


def linear_into(
    result: torch.Tensor, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> None:
    """`linear` into rows that are there; they may lie apart. Raises ValueError for activations of another kind."""
    rows, (out, into) = len(x), weight.shape
    if x.dtype != torch.float32 or x.shape[1] != into or (x.stride(1) != 1 and into > 1):
        raise ValueError(
            f"linear on a CPU wants float32 rows of {into} neighbours, not {x.dtype} {list(x.shape)} with strides "
            f"{x.stride()}"
        )
    matrix, data = (_NUMBER[weight.format], out, into), (weight.data, _row_bytes(weight))
    if not weight.whole_numbers:
        call("linear_floats", "iiiplpplipl", *matrix, *data, bias, x, x.stride(0), rows, result, result.stride(0))
        return
    blocks = -(-into // BLOCK)
    numbers = empty("rounded", (rows, blocks * BLOCK), torch.int16)
    scales, sums = empty("rounded scales", (rows,)), empty("rounded sums", (rows + -rows % TOGETHER, blocks))
    call(
        "linear_numbers", "iiiiplppplipppipl",
        *matrix, weight.group, *data, weight.scales, bias, x, x.stride(0), LARGEST[activation_bits], numbers, scales,
        sums, rows, result, result.stride(0),
    )  # fmt: skip


def embedding(weight: Weight, token_ids: torch.Tensor) -> torch.Tensor:
    """As `kernels.reference.embedding`."""
    out, into = weight.shape
    result = empty("embedding", (len(token_ids), into))
    call(
        "embed", "iiiiplppip",
        _NUMBER[weight.format], out, into, weight.group, weight.data, _row_bytes(weight), weight.scales, token_ids,
        len(token_ids), result,
    )  # fmt: skip
    return result


def _row_bytes(weight: Weight) -> int:
    return weight.data.stride(0) * weight.data.element_size()
