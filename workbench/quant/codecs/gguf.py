"""GGUF's blocks of 32 that kernels compute with: rounded as ggml rounds, and to and from the canonical form.

========  =====================================================================================
``Q4_0``  ``(q − 8) · d``: float16 d, 4-bit q; d is the number of largest magnitude by −8
``Q4_1``  ``q · d + m``: float16 d and m, 4-bit q; from the least to the largest in 15 steps
``Q8_0``  ``q · d``: float16 d, 8-bit q; d is the largest magnitude by 127
========  =====================================================================================

ggml divides by the d that it computed in float32 and stores it as float16; who divides by the stored one gets other
bytes. Source: ggml's ``quantize_row_*_ref``, and the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kernels.reference.weights import BLOCK, GGUF_BYTES, gguf_blocks, gguf_weight, numbers
from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.codecs.interface import require_tensors
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight
from workbench.quant.scales import FP16_FEW_DIGITS

TYPES = ("Q4_0", "Q4_1", "Q8_0")
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}


def quantize_blocks(x: Tensor, type_name: str, name: str = "weight") -> Tensor:
    """Rounds a matrix ``[N, K]`` to the bytes that ggml gives it, uint8 ``[N, bytes of a row]``.

    Raises UsageError for types that are not written and for rows that are no whole blocks, ValueError for numbers that
    are not finite.
    """
    _require_type(type_name)
    GgufBlocks(type_name).require_fit(*x.shape, name)
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name}: there are infinities or NaN, and a block keeps none")
    blocks = x.float().reshape(x.shape[0], -1, BLOCK)
    offset = None
    if type_name == "Q4_0":
        d = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8
        q = (blocks * _inverse(d) + 8.5).trunc().clamp(0, 15)
    elif type_name == "Q4_1":
        offset = blocks.amin(-1, keepdim=True)
        d = (blocks.amax(-1, keepdim=True) - offset) / 15
        q = ((blocks - offset) * _inverse(d) + 0.5).trunc().clamp(0, 15)
    else:
        d = blocks.abs().amax(-1, keepdim=True) / 127
        scaled = blocks * _inverse(d)
        # Half away from 0; adding a half before cutting off would carry 0.49999997 over.
        whole = scaled.abs().floor()
        q = (whole + (2 * (scaled.abs() - whole)).floor()) * scaled.sign()
    return gguf_blocks(type_name.lower(), q, d[..., 0], None if offset is None else offset[..., 0])


def encode(weight: QuantizedWeight, type_name: str, name: str = "weight") -> Tensor:
    """The bytes that mean just what ``weight`` means, uint8 ``[N, bytes of a row]``.

    Groups may be any whole blocks; their scale is repeated. Raises UsageError for what the type cannot say: zero points
    in Q4_0 and Q8_0, offsets that float16 does not hold in Q4_1.
    """
    _require_type(type_name)
    scale, zero, (rows, columns) = weight.params.scale, weight.params.zero, weight.q.shape
    if weight.args.type != "int" or weight.args.bits != _BITS[type_name]:
        raise UsageError(f"{name} is of {weight.args.bits} bits and {type_name} of {_BITS[type_name]}")
    width = columns // scale.shape[1]
    if weight.group_of is not None or width * scale.shape[1] != columns or width % BLOCK:
        raise UsageError(f"{name}: its groups are no whole blocks of {BLOCK} neighbours, as {type_name} has them")
    if zero is not None and type_name != "Q4_1" and bool(zero.any()):
        raise UsageError(f"{name} has zero points, which {type_name} does not keep: write Q4_1")
    zero = torch.zeros_like(scale) if zero is None else zero.float()
    scale, zero = (part.repeat_interleave(width // BLOCK, 1) for part in (scale, zero))
    offset = -(zero + 8) * scale if type_name == "Q4_1" else None
    for part in (scale, offset):
        if part is not None and not torch.equal(part.half().float(), part):
            raise UsageError(f"{name}: its {'scales' if part is scale else 'offsets'} need more than float16's digits, "
                             f"which is what {type_name} keeps: write another format")  # fmt: skip
    q = weight.q.float().reshape(rows, -1, BLOCK) + (0 if type_name == "Q8_0" else 8)
    return gguf_blocks(type_name.lower(), q, scale, offset)


def decode(data: Tensor, type_name: str, shape: tuple[int, int], name: str = "weight") -> QuantizedWeight:
    """A weight ``[N, K]`` out of its bytes. Raises UsageError for Q4_1 whose offsets are no whole zero points, as what
    ggml itself rounds: that has no canonical form, only floats."""
    _require_type(type_name)
    q, scale, offset = numbers(gguf_weight(data, type_name.lower(), shape))
    zero = None
    if offset is not None:
        unsigned = (-offset / torch.where(scale == 0, 1.0, scale)).round()
        if bool((unsigned * scale != -offset).any()) or not bool(((unsigned >= 0) & (unsigned <= 15)).all()):
            raise UsageError(f"{name}: the offsets of its Q4_1 blocks are no whole zero points: dequantize it")
        q, zero = q - 8, (unsigned - 8).to(torch.int8)
    args = QuantArgs(_BITS[type_name], group_size=BLOCK, symmetric=zero is None, scale="fp16")
    return QuantizedWeight(q.reshape(shape).to(torch.int8), QParams(scale, zero), args)


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """Weights of the layers of a file of one type, by what an algorithm chose for them."""

    type_name: str

    ENDS: ClassVar[tuple[str, ...]] = ("blocks",)

    def __post_init__(self) -> None:
        _require_type(self.type_name)

    @property
    def args(self) -> QuantArgs:
        """Blocks as groups. Where zero points become offsets, scales have so few digits that float16 holds each
        offset; Q8_0 never stores −128."""
        bits, asymmetric = _BITS[self.type_name], self.type_name == "Q4_1"
        return QuantArgs(
            bits,
            group_size=BLOCK,
            symmetric=not asymmetric,
            symmetric_range="narrow" if bits == 8 else "full",
            scale=FP16_FEW_DIGITS.name if asymmetric else "fp16",
        )

    def require_fit(self, rows: int, columns: int, name: str) -> None:
        if columns % BLOCK:
            raise UsageError(f"{name}: rows of {columns} are no whole {self.type_name} blocks of {BLOCK}")

    def encode(self, weight: QuantizedWeight, name: str = "weight") -> dict[str, Tensor]:
        return {"blocks": encode(weight, self.type_name, name)}

    def decode(self, tensors: Mapping[str, Tensor], name: str = "weight") -> QuantizedWeight:
        (data,) = require_tensors(tensors, self.ENDS, name)
        columns = data.shape[1] // GGUF_BYTES[self.type_name.lower()] * BLOCK
        return decode(data, self.type_name, (len(data), columns), name)


def _require_type(type_name: str) -> None:
    if type_name not in TYPES:
        raise UsageError(f"GGUF type {type_name!r} is not written; choose from {', '.join(TYPES)}")


def _inverse(d: Tensor) -> Tensor:
    return torch.where(d == 0, 0.0, 1 / d)
