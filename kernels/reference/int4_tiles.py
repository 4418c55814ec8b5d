"""4-bit weights with 16-bit activations (W4A16) on a GPU: how the weights are stored there, and what the product means.

A checkpoint lays weights out for whoever reads them number by number. Here they lie as a tensor core's program reads
them: a tile of 64 outputs and 128 inputs is one piece of 4 KiB, and so are the scales of 64 outputs. Laid out once,
when a model is loaded, as Marlin does (Frantar and others, 2024, section 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.reference.weights import Weight, numbers

TILE_N, TILE_K = 64, 128
"""Outputs and inputs of a tile."""
NIBBLES = 4
"""Numbers in a word of 16 bits."""
WORDS = TILE_K // NIBBLES
"""Words of one output in a tile: 32."""
PADDED_N = 128
"""Outputs are filled up to a multiple: the largest tile of a program."""
GROUPS = (32, 64)
"""Groups smaller than a tile; larger ones are its multiples."""


@dataclass(frozen=True, slots=True)
class Int4Tiles:
    """A matrix ``[out, in]`` of numbers ``(q − zero) · scale``, q 0 … 15, in tiles.

    What is filled up counts for nothing: its scales are 0.
    """

    shape: tuple[int, int]
    """out, in"""
    words: torch.Tensor
    """int16 ``[out tiles, in tiles, 64, 32]``: four bits j of word c, from the lowest on, are input ``32 · j + c`` of
    the tile. So one shift and one mask of a tile of words give 32 neighbouring inputs of each output."""
    params: torch.Tensor
    """int32 ``[groups, outputs filled up]``: a group's scale, the bits of a float16, in the low half, and its zero
    point, a whole number, in the high half"""
    group: int
    """Neighbouring inputs that share a scale: 32, 64, or a multiple of 128"""
    order: torch.Tensor | None = None
    """int64 ``[in]``: which input stands where, so that a group's inputs are neighbours (act-order); None: as they are
    """

    format = "int4-tiles"

    @property
    def data(self) -> torch.Tensor:
        return self.words

    @property
    def num_bytes(self) -> int:
        """Words and parameters, what was filled up included."""
        return self.words.nbytes + self.params.nbytes


def int4_tiles(
    q: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    group: int = -1,
    order: torch.Tensor | None = None,
) -> Int4Tiles:
    """Lays numbers out.

    Args:
        q: ``[out, in]`` 0 … 15, the inputs in ``order``.
        scale: ``[out, groups]`` that float16 holds; the last group may be short.
        zero: ``[out, groups]``, a whole number from 0 to 16; None: 8, the middle.
        group: a multiple of 32, or −1 for all inputs.
        order: int64 ``[in]``: the input that each column of q belongs to; None: as they stand.

    Raises ValueError for groups that are no multiple of 32 or do not fit q.
    """
    out, into = q.shape
    wide = -(-into // TILE_K) * TILE_K
    width = wide if group == -1 else group
    if width < 1 or width % GROUPS[0]:
        raise ValueError(f"int4 tiles: groups of {group} are no multiple of {GROUPS[0]}; -1 is one for all inputs")
    if scale.shape != (out, -(-into // width)) or (zero is not None and zero.shape != scale.shape):
        found = [list(one.shape) for one in (scale, zero) if one is not None]
        raise ValueError(f"int4 tiles: scales and zero points {found} do not fit {out} × {into} in groups of {group}")
    stored = next(size for size in (TILE_K, *reversed(GROUPS)) if width % size == 0)
    stored = width if stored == TILE_K else stored
    params = _params(scale, zero).repeat_interleave(width // stored, 0)[: -(-wide // stored)]
    params = F.pad(params, (0, -out % PADDED_N, 0, -(-wide // stored) - len(params)))
    return Int4Tiles((out, into), _in_words(q, wide), params.contiguous(), stored, order)


def tiles_of(weight: Weight) -> Int4Tiles:
    """A weight of the format ``uint4`` in tiles."""
    assert weight.format == "uint4" and weight.scales is not None
    q = numbers(weight).q.reshape(weight.shape)
    scale, zero = weight.scales.unbind(-1)
    return int4_tiles(q, scale, zero, -1 if scale.shape[1] == 1 else weight.group, weight.order)


def dequantize(tiles: Int4Tiles) -> torch.Tensor:
    """float32 ``[out, in]``, the inputs where they were before they were put in ``order``."""
    (out, into), words = tiles.shape, tiles.words.int()
    q = torch.stack([words >> 4 * j & 15 for j in range(NIBBLES)], 3)  # [out tiles, in tiles, 64, 4, 32]
    q = q.permute(0, 2, 1, 3, 4).reshape(len(words) * TILE_N, -1)[:out, :into]
    scale = (tiles.params & 0xFFFF).to(torch.int16).view(torch.float16).float()
    at = torch.arange(into, device=q.device) // tiles.group
    values = (q - (tiles.params >> 16).T[:out, at]) * scale.T[:out, at]
    if tiles.order is None:
        return values
    return torch.empty_like(values).index_copy_(1, tiles.order, values)


def w4a16_linear(x: torch.Tensor, weight: Int4Tiles, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x · weightᵀ + bias``: x ``[rows, in]`` → ``[rows, out]`` in x's dtype, to which the weight is brought too."""
    return F.linear(x, dequantize(weight).to(x.dtype), None if bias is None else bias.to(x.dtype))


def _params(scale: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
    """int32 ``[groups, out]``"""
    low = scale.half().contiguous().view(torch.int16).int() & 0xFFFF
    high = torch.full_like(low, 8) if zero is None else zero.int()
    return (low | high << 16).T.contiguous()


def _in_words(q: torch.Tensor, wide: int) -> torch.Tensor:
    padded = F.pad(q.int(), (0, wide - q.shape[1], 0, -len(q) % PADDED_N))
    tiled = padded.reshape(len(padded) // TILE_N, TILE_N, wide // TILE_K, NIBBLES, WORDS).permute(0, 2, 1, 3, 4)
    words = sum(tiled[:, :, :, j] << 4 * j for j in range(NIBBLES))
    assert isinstance(words, torch.Tensor)
    return words.to(torch.int16).contiguous()
