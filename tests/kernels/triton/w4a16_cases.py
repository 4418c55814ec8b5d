"""Weights of 4 bits at random, with what they stand for, and the checks that several tests of W4A16 make."""

from __future__ import annotations

from typing import NamedTuple

import torch

import kernels
from kernels import reference
from kernels.reference.int4_tiles import Int4Tiles, int4_tiles
from kernels.triton import w4a16
from tests.kernels.triton.rules import agrees, amid_nan, drawn


class Made(NamedTuple):
    tiles: Int4Tiles
    matrix: torch.Tensor
    """float64 ``[out, in]``, computed here from the numbers"""


def made(
    out: int, into: int, group: int = 128, *, zeros: bool = True, order: bool = False, seed: int = 0,
    device: str = "cpu",
) -> Made:  # fmt: skip
    """``zeros``: with zero points of their own, from 0 to 16. ``order``: columns belong to shuffled inputs."""
    draw = torch.Generator().manual_seed(seed)
    groups = 1 if group == -1 else -(-into // group)
    q = torch.randint(0, 16, (out, into), generator=draw)
    # Powers of two among them: q and zero point have nothing to hide behind.
    scale = torch.rand(out, groups, generator=draw).div_(16).add_(0.01).half().float()
    zero = torch.randint(0, 17, (out, groups), generator=draw) if zeros else None
    columns = torch.randperm(into, generator=draw) if order else None
    matrix = torch.empty(out, into, dtype=torch.float64)
    for column in range(into):
        place = 0 if group == -1 else column // group
        middle = 8 if zero is None else zero[:, place].double()
        at = column if columns is None else int(columns[column])
        matrix[:, at] = (q[:, column].double() - middle) * scale[:, place].double()
    parts = [None if one is None else one.to(device) for one in (q, scale, zero)]
    tiles = int4_tiles(*parts, group, None if columns is None else columns.to(device))  # type: ignore[arg-type]
    return Made(tiles, matrix.to(device))


def check(
    rows: int, one: Made, dtype: torch.dtype, *, bias: bool = False, splits: int | None = None, seed: int = 7
) -> torch.Tensor:
    """The kernel against the definition and the truth; returns what it gave."""
    device = one.matrix.device
    x = amid_nan(rows, one.tiles.shape[1], seed=seed, dtype=dtype).to(device)
    added = drawn(one.tiles.shape[0], seed=seed + 1, dtype=dtype).to(device) if bias else None
    found = w4a16.w4a16_linear(x, one.tiles, added, num_splits=splits)
    wide = x.double() @ one.matrix.T + (0 if added is None else added.double())
    agrees(found, reference.w4a16_linear(x, one.tiles, added), wide)
    if splits is None:
        assert torch.equal(kernels.w4a16_linear(x, one.tiles, added, maker="triton"), found)
    return found


def each_input_by_itself(one: Made, dtype: torch.dtype, splits: int | None = None) -> None:
    """Rows of the identity: each product is one weight, which must come out to the last bit."""
    into = one.tiles.shape[1]
    x = torch.eye(into, dtype=dtype, device=one.matrix.device)
    found = w4a16.w4a16_linear(x, one.tiles, num_splits=splits)
    assert torch.equal(found, one.matrix.T.to(dtype))
