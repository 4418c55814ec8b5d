"""Random weights in every format, made byte by byte where the format is a file's."""

from __future__ import annotations

import torch

from kernels.reference.weights import GGUF_BYTES, Weight, gguf_weight, pack, weight_of_numbers

KINDS = ("float32", "float16", "bfloat16", "int8", "int4-32", "int4-64", "uint4-32", "uint4-64", *GGUF_BYTES)
WHOLE = tuple(kind for kind in KINDS if kind[0] in "iqu")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_weight(kind: str, out: int, into: int, seed: int = 0) -> Weight:
    """Blocks of a GGUF file hold any bytes for numbers, −128 among them, and scales of either sign."""
    if kind not in GGUF_BYTES:
        name, _, group = kind.partition("-")
        if name == "uint4":
            return _random_uint4(out, into, int(group), seed)
        return pack(drawn(out, into, seed=seed), name, int(group or 32))
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (out, into // 32, GGUF_BYTES[kind]), dtype=torch.uint8, generator=generator)
    heads = 2 if kind == "q4_1" else 1
    scales = torch.randn(out, into // 32, heads, generator=generator).div_(64).half()
    blocks[..., : 2 * heads] = scales.view(torch.uint8)
    return gguf_weight(blocks, kind, (out, into))


def _random_uint4(out: int, into: int, group: int, seed: int) -> Weight:
    generator = torch.Generator().manual_seed(seed)
    q, zero = (torch.randint(0, 16, (out, n), generator=generator) for n in (into, into // group))
    scale = torch.rand(out, into // group, generator=generator).div_(64).add_(1e-3).half()
    return weight_of_numbers("uint4", q, scale, zero, group)


def written_out(weight: Weight) -> torch.Tensor:
    """The matrix in float64, number by number in plain Python: what the bytes mean, said once more."""
    out, into = weight.shape
    if not weight.whole_numbers:
        return weight.data.double()
    rows = []
    for n in range(out):
        row = []
        for i in range(into):
            q, scale, offset = _number(weight, n, i)
            row.append(q * scale + offset)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def _number(weight: Weight, n: int, i: int) -> tuple[int, float, float]:
    if weight.format == "int8":
        assert weight.scales is not None
        return int(weight.data[n, i]), float(weight.scales[n]), 0.0
    block, place = divmod(i, 32)
    if weight.format in ("int4", "uint4"):
        assert weight.scales is not None
        scale, offset = weight.scales[n, i // weight.group].tolist()
        offset = offset if weight.format == "int4" else -offset * scale
        return _nibble(weight.data[n, 16 * block : 16 * block + 16], place), scale, offset
    size = GGUF_BYTES[weight.format]
    raw = weight.data[n, block * size : (block + 1) * size]
    scale = float(raw[:2].clone().view(torch.float16))
    if weight.format == "q8_0":
        return int(raw[2:].view(torch.int8)[place]), scale, 0.0
    if weight.format == "q4_0":
        return _nibble(raw[2:], place) - 8, scale, 0.0
    return _nibble(raw[4:], place), scale, float(raw[2:4].clone().view(torch.float16))


def _nibble(raw: torch.Tensor, place: int) -> int:
    byte = int(raw[place % 16])
    return byte & 15 if place < 16 else byte >> 4
