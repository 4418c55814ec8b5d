"""Stored GGUF blocks -> float32: one function a storage type, all blocks of a tensor at once.

A block packs a few small integers with a scale (and an offset) of their own: ``w = q · scale + offset``. In the
K-types a block of 256 holds 8 or 16 sub-blocks whose scales are themselves packed integers under one float16 scale.
The order of operations follows ggml, so that results are equal to the bit. Source: ggml's block definitions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.reference.weights import gguf_weight, unpack
from workbench.errors import UsageError
from workbench.gguf_file import BLOCK_TYPES

Decoder = Callable[[Tensor], Tensor]
"""uint8 [num_blocks, bytes of a block] -> float32 [num_blocks, values of a block]."""

# Values decoded at a time: few enough that the steps in between stay in the cache, enough to hide the calls.
_CACHED_VALUES = 1 << 18


def dequantize(data: Tensor, type_name: str, shape: tuple[int, ...]) -> Tensor:
    """Decodes a stored tensor.

    Args:
        data: uint8, the tensor's bytes in any shape; block after block, row after row.
        type_name: a key of `CODECS`, ``Q4_1`` for one.
        shape: the decoded shape, rows first.

    Returns:
        float32 tensor of ``shape``, its own memory.

    Raises:
        UsageError: a storage type that is not supported, or bytes that do not make whole blocks of ``shape``.
    """
    if type_name not in CODECS:
        raise UsageError(f"storage type {type_name} is not supported; supported: {', '.join(CODECS)}")
    block = BLOCK_TYPES[type_name]
    if data.numel() % block.num_bytes:
        raise UsageError(f"{data.numel()} bytes are not whole {type_name} blocks of {block.num_bytes} bytes")
    decode, blocks = CODECS[type_name], data.reshape(-1, block.num_bytes)
    values = torch.empty(len(blocks), block.values)
    step = _CACHED_VALUES // block.values
    for start in range(0, len(blocks), step):
        values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(shape)


def _half(raw: Tensor) -> Tensor:
    """Bytes [num_blocks, 2 · n] -> the n float16 numbers in them as float32."""
    return raw.contiguous().view(torch.float16).float()


def _shifts(*bits: int) -> Tensor:
    """Right shifts along the last but one dimension."""
    return torch.tensor(bits, dtype=torch.uint8).unsqueeze(-1)


def _nibbles(packed: Tensor) -> Tensor:
    """[…, n] -> […, 2n]: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """Four bytes -> 32 numbers of 0 or 16: bit i belongs to value i."""
    bits = raw.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).reshape(len(raw), 32) << 4


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _of_kernels(name: str) -> Decoder:
    """Of the types that kernels compute with; there each block is a row."""
    return lambda blocks: unpack(gguf_weight(blocks, name, (len(blocks), 32)))


def _q5_0(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return values.float().sub_(16).mul_(_half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> Tensor:
    scale_offset = _half(blocks[:, :4])
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return values.float().mul_(scale_offset[:, :1]).add_(scale_offset[:, 1:])


def _two_bit(packed: Tensor) -> Tensor:
    """[num_blocks, 64] -> [num_blocks, 2, 4, 32]: byte l of a half holds values l, l + 32, l + 64 and l + 96 of it."""
    return (packed.reshape(-1, 2, 1, 32) >> _shifts(0, 2, 4, 6)) & 3


def _q2_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, :16]
    scale_offset = _half(blocks[:, 80:84])
    scale = scale_offset[:, :1] * (packed & 15).float()
    offset = scale_offset[:, 1:] * (packed >> 4).float()
    values = _two_bit(blocks[:, 16:80]).reshape(-1, 16, 16).float()
    return values.mul_(scale.unsqueeze(-1)).sub_(offset.unsqueeze(-1)).reshape(-1, 256)


def _q3_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    high = ((packed[:, 8:].unsqueeze(1) >> _shifts(0, 2, 4, 6)) & 3).reshape(-1, 16) << 4
    scale = (low | high).float().sub_(32).mul_(_half(blocks[:, 108:110]))
    # The third bit is stored inverted: where it is 0, four is taken off.
    third = (blocks[:, :32].unsqueeze(1) >> _shifts(*range(8))) & 1
    values = _two_bit(blocks[:, 32:96]).reshape(-1, 8, 32) | (third << 2)
    return values.float().sub_(4).reshape(-1, 16, 16).mul_(scale.unsqueeze(-1)).reshape(-1, 256)


def _scales_of_eight(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Q4_K and Q5_K head: two float16 and 12 bytes -> scale and offset [num_blocks, 8, 1] of the sub-blocks of 32.

    Bytes 0-3 and 4-7 hold six bits of the first four scales and offsets; their top two bits and bytes 8-11 (low half
    for scales, high half for offsets) make the last four.
    """
    head = _half(blocks[:, :4])
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    offset = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return (head[:, :1] * scale.float()).unsqueeze(-1), (head[:, 1:] * offset.float()).unsqueeze(-1)


def _q4_k(blocks: Tensor) -> Tensor:
    scale, offset = _scales_of_eight(blocks)
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).float()
    return values.mul_(scale).sub_(offset).reshape(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, offset = _scales_of_eight(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = (blocks[:, 16:48].unsqueeze(1) >> _shifts(*range(8))) & 1
    return (low | (fifth << 4)).float().mul_(scale).sub_(offset).reshape(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    low = torch.cat((low & 15, low >> 4), dim=2)
    values = low | (_two_bit(blocks[:, 128:192]) << 4)
    scale = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks[:, 208:210]))
    return values.float().sub_(32).reshape(-1, 16, 16).mul_(scale.unsqueeze(-1)).reshape(-1, 256)


CODECS: dict[str, Decoder] = {
    "F32": _f32,
    "F16": _half,
    "BF16": _bf16,
    "Q4_0": _of_kernels("q4_0"),
    "Q4_1": _of_kernels("q4_1"),
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _of_kernels("q8_0"),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
