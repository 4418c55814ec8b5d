"""How weights are stored: what the bytes of each format mean.

The whole-number formats hold a row in groups of numbers q that stand for ``q · scale + offset``:

=========  ==================================================================================================
``int8``   ``data`` int8 ``[out, in]``, filled up with zeros to a multiple of 32; ``scales`` float32 ``[out]``
``int4``   ``data`` uint8 ``[out, in / 2]``, 16 bytes for 32 numbers, low halves first; ``scales`` float16
           ``[out, in / group, 2]``: scale and offset of each group of 32 or 64
``uint4``  ``data`` like ``int4``; ``scales`` float16 ``[out, in / group, 2]``: scale and zero point, a whole number;
           they stand for ``(q − zero) · scale``, as checkpoints of GPTQ, AWQ and compressed-tensors have it. On a GPU
           (`kernels.reference.int4_tiles`) groups are any multiple of 32, or all inputs
``q8_0``   GGUF's blocks of 32 as they lie in the file, ``data`` uint8 ``[out, in / 32 · 34]``: float16 scale, 32 int8
``q4_0``   ``[out, in / 32 · 18]``: float16 scale, 16 bytes of q + 8, low halves first
``q4_1``   ``[out, in / 32 · 20]``: float16 scale, float16 offset, 16 bytes of q, low halves first
=========  ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F

BLOCK = 32
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
GGUF_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
"""Bytes of a block of 32."""
FORMATS = (*FLOATS, "int8", "int4", "uint4", *GGUF_BYTES)
INT4_GROUPS = (32, 64)


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix ``[out, in]`` in one of `FORMATS`."""

    format: str
    shape: tuple[int, int]
    data: torch.Tensor
    scales: torch.Tensor | None = None
    group: int = 0
    """Numbers that share a scale (``int4``, ``uint4``)."""
    order: torch.Tensor | None = None
    """int64 ``[in]``: the input that each column of ``data`` belongs to, where they were sorted by group (act-order of
    GPTQ, ``uint4`` on a GPU); None: each stands in its place"""

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def whole_numbers(self) -> bool:
        return self.format not in FLOATS

    def to(self, device: torch.device | str) -> Weight:
        """The same on another device."""
        moved = [None if one is None else one.to(device) for one in (self.scales, self.order)]
        return replace(self, data=self.data.to(device), scales=moved[0], order=moved[1])


class Numbers(NamedTuple):
    """What a whole-number weight stands for: ``q · scale + offset``."""

    q: torch.Tensor
    """``[out, groups, numbers of a group]`` int16"""
    scale: torch.Tensor
    """``[out, groups]`` float32"""
    offset: torch.Tensor | None
    """``[out, groups]`` float32"""


def float_weight(matrix: torch.Tensor) -> Weight:
    """A matrix of floats as it is."""
    return Weight(str(matrix.dtype).removeprefix("torch."), (matrix.shape[0], matrix.shape[1]), matrix)


def gguf_weight(data: torch.Tensor, format: str, shape: tuple[int, int]) -> Weight:
    """A matrix as a GGUF file stores it. data: its bytes, uint8 in any shape."""
    return Weight(format, shape, data.reshape(shape[0], shape[1] // BLOCK * GGUF_BYTES[format]))


def gguf_blocks(format: str, q: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None = None) -> torch.Tensor:
    """A file's bytes, uint8 ``[out, bytes of a row]``.

    q ``[out, blocks, 32]``: the numbers as stored, 0 … 15 of 4 bits. scale and offset ``[out, blocks]``.
    """
    heads = [part.half()[..., None].contiguous().view(torch.uint8) for part in (scale, offset) if part is not None]
    stored = q.to(torch.int8).view(torch.uint8)
    body = stored if format == "q8_0" else stored[..., :16] | stored[..., 16:] << 4
    return torch.cat((*heads, body), -1).flatten(1)


def stack(weights: list[Weight]) -> Weight | None:
    """One matrix with the rows of all; None if they are not of one kind."""
    first = weights[0]
    if len({(w.format, w.shape[1], w.group, w.order is None) for w in weights}) > 1:
        return None
    if first.order is not None and not all(torch.equal(first.order, w.order) for w in weights if w.order is not None):
        return None
    if len(weights) == 1:
        return first
    scales = None if first.scales is None else torch.cat([w.scales for w in weights if w.scales is not None])
    rows = sum(w.shape[0] for w in weights)
    return replace(first, shape=(rows, first.shape[1]), data=torch.cat([w.data for w in weights]), scales=scales)


def pack(matrix: torch.Tensor, format: str, group: int = BLOCK) -> Weight:
    """Rounds a matrix of floats ``[out, in]`` to the nearest numbers of a format.

    ``int8``: one scale a row, max |w| / 127. ``int4``: from the least to the largest of each group in 15 steps, with 0
    among what the range covers; ``uint4``: the same with a whole zero point. ``q8_0``: max |w| / 127 of each 32. Raises
    ValueError for what it cannot pack.
    """
    if format in FLOATS:
        return float_weight(matrix.to(FLOATS[format]))
    out, into = matrix.shape
    if format == "int8":
        scale = matrix.float().abs().amax(1) / 127
        q = (matrix.float() / _not_zero(scale)[:, None]).round().clamp_(-127, 127)
        return Weight(format, (out, into), F.pad(q.to(torch.int8), (0, -into % BLOCK)), scale)
    if format not in ("int4", "uint4", "q8_0"):
        known = ", ".join((*FLOATS, "int8", "int4", "uint4", "q8_0"))
        raise ValueError(f"weights are packed into {known}, not {format!r}")
    if format != "q8_0" and group not in INT4_GROUPS:
        raise ValueError(f"{format} has groups of {INT4_GROUPS[0]} or {INT4_GROUPS[1]}, not {group}")
    group = BLOCK if format == "q8_0" else group
    if into % group:
        raise ValueError(f"{format}: rows of {into} are no whole groups of {group}")
    grouped = matrix.float().reshape(out, into // group, group)
    if format == "q8_0":
        half = (grouped.abs().amax(-1) / 127).half().float()
        return weight_of_numbers(
            format, (grouped / _not_zero(half)[..., None]).round().clamp_(-127, 127).flatten(1), half
        )
    low, high = grouped.amin(-1).clamp_max(0), grouped.amax(-1).clamp_min(0)
    scale = ((high - low) / 15).half().float()
    if format == "int4":
        second = offset = low.half().float()
    else:
        second = (-low / _not_zero(scale)).round().clamp_(0, 15)
        offset = -second * scale
    scales = torch.stack((scale, second), -1).half()
    q4 = ((grouped - offset[..., None]) / _not_zero(scale)[..., None]).round().clamp_(0, 15).to(torch.uint8)
    return Weight(format, (out, into), _in_halves(q4.reshape(out, into)), scales, group)


def weight_of_numbers(
    format: str,
    q: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    group: int = BLOCK,
    order: torch.Tensor | None = None,
) -> Weight:
    """A weight of whole numbers that are given: ``int8``, ``q8_0`` or ``uint4``.

    Args:
        q: ``[out, in]``, within the format's range.
        scale: ``[out, in / group]`` that float16 holds; of ``int8`` ``[out, 1]`` float32.
        zero: of ``uint4``, like ``scale``.
        order: of ``uint4``: see `Weight`.
    """
    shape = (q.shape[0], q.shape[1])
    if format == "int8":
        return Weight(format, shape, F.pad(q.to(torch.int8), (0, -shape[1] % BLOCK)), scale[:, 0].float())
    if format == "q8_0":
        return gguf_weight(gguf_blocks(format, q.reshape(shape[0], -1, BLOCK), scale), format, shape)
    assert format == "uint4" and zero is not None
    return Weight(format, shape, _in_halves(q.to(torch.uint8)), torch.stack((scale, zero), -1).half(), group, order)


def numbers(weight: Weight) -> Numbers:
    """The whole numbers of a weight with their scales and offsets. ``int8`` is one group."""
    out, into = weight.shape
    if weight.format == "int8":
        assert weight.scales is not None
        return Numbers(weight.data[:, None, :into].short(), weight.scales[:, None], None)
    if weight.format in ("int4", "uint4"):
        assert weight.scales is not None
        q = _halves(weight.data.reshape(out, -1, 16)).reshape(out, into // weight.group, weight.group)
        scale, offset = weight.scales.float().unbind(-1)
        return Numbers(q, scale, offset if weight.format == "int4" else -offset * scale)
    blocks = weight.data.reshape(out, into // BLOCK, GGUF_BYTES[weight.format])
    scale = _half(blocks[..., :2])
    if weight.format == "q8_0":
        return Numbers(blocks[..., 2:].view(torch.int8).short(), scale, None)
    if weight.format == "q4_0":
        return Numbers(_halves(blocks[..., 2:]) - 8, scale, None)
    return Numbers(_halves(blocks[..., 4:]), scale, _half(blocks[..., 2:4]))


def unpack(weight: Weight) -> torch.Tensor:
    """The matrix as float32 ``[out, in]``, in ggml's order of operations: product, then sum."""
    if not weight.whole_numbers:
        return weight.data.float()
    q, scale, offset = numbers(weight)
    values = q.float().mul_(scale[..., None])
    values = (values if offset is None else values.add_(offset[..., None])).reshape(weight.shape)
    return values if weight.order is None else torch.empty_like(values).index_copy_(1, weight.order, values)


def _half(raw: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(torch.float16)[..., 0].float()


def _halves(packed: torch.Tensor) -> torch.Tensor:
    return torch.cat((packed & 15, packed >> 4), -1).short()


def _in_halves(q: torch.Tensor) -> torch.Tensor:
    """uint8 ``[out, in]`` of 4 bits → ``[out, in / 2]``: of each 32 the first 16 in low halves, the others in high."""
    halves = q.reshape(len(q), -1, 2, 16)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


def _not_zero(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, scale, 1.0)
