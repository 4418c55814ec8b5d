"""How a batch's paged attention is cut into programs: once a step on the host, the same for all layers.

A request with few queries, `decode_limit` at most, *decodes*: its rows fit one tile and what takes time is reading its
keys, so these may be split over programs (split-KV, FlashDecoding, Dao et al. 2023), whose results are merged. One with
more queries *prefills*: there are tiles enough. Which it is depends on the request alone.

Two ways to split. *Even shares* by FlashAttention-3's rule: as few splits as keep the chip's multiprocessors nearly as
busy as any number would. That depends on the batch, and so do the last bits of a result. *Fixed size*: every so many
keys of a request, counted from its first token, are a split. Then a result has the same bits whatever else is in the
batch; short batches may leave a part of the chip idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from kernels.triton.flash_tiles import Tiles

DECODE_ROWS = 16
"""The least rows of a matrix instruction."""
MAX_SPLITS = 128
SPLIT_SIZE = 1024
"""Keys of a fixed split, unless told otherwise. Partial results take ``4 · head_dim / SPLIT_SIZE`` bytes a query head
and key: at 128, half a byte beside the 512 of the key and value in 16 bits that it shares with its group."""


class Bounds(NamedTuple):
    """What the host knows of a batch's lengths. May be too much, never too little."""

    width: int
    """Most queries of a request that decodes; 0: none does."""
    prefills: bool
    """Whether a request may have more than `decode_limit` queries."""
    length: int
    """Keys of the longest request that decodes."""


class Plan(NamedTuple):
    query_start: torch.Tensor  # [batch + 1] int32 on the device
    seq_lens: torch.Tensor  # [batch] int32 on the device
    width: int
    prefills: bool
    window: int | None
    num_splits: int
    split_size: int  # 0: even shares
    tiles: Tiles  # of programs that decode


def decode_limit(group: int) -> int:
    """The most queries of a request that decodes: as many as a tile has room for, at least one."""
    return max(1, DECODE_ROWS // group)


def bounds_of(query_start: Sequence[int], seq_lens: Sequence[int], group: int) -> Bounds:
    """Where the host knows all lengths."""
    limit = decode_limit(group)
    counts = [end - begin for begin, end in pairwise(query_start)]
    few = [(count, length) for count, length in zip(counts, seq_lens, strict=True) if 0 < count <= limit]
    return Bounds(
        max((count for count, _ in few), default=0),
        any(count > limit for count in counts),
        max((length for _, length in few), default=0),
    )


def bounds_for(max_queries: int, max_length: int, group: int) -> Bounds:
    """Where lengths are on the device only, as in a step that is recorded: ``max_queries`` and ``max_length`` of any
    request."""
    limit = decode_limit(group)
    return Bounds(min(limit, max_queries), max_queries > limit, max_length)


def make_plan(
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    bounds: Bounds,
    *,
    num_kv_heads: int,
    group: int,
    tiles: Tiles,
    window: int | None = None,
    split_size: int | None = None,
    num_sms: int = 1,
) -> Plan:
    """A plan that reads no value of its tensors. ``tiles``: of the programs that decode.

    ``split_size``: keys of a split, a multiple of the tiles' block, for the same bits in any batch; None: even shares
    for ``num_sms`` multiprocessors. Raises ValueError for tensors and sizes that do not fit.
    """
    batch = seq_lens.shape[0] if seq_lens.ndim == 1 else -1
    for name, tensor, size in (("query_start", query_start, batch + 1), ("seq_lens", seq_lens, batch)):
        if tensor.dtype != torch.int32 or not tensor.is_contiguous() or tuple(tensor.shape) != (size,):
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be contiguous int32 [{size}]")
    if split_size is not None and (split_size < 1 or split_size % tiles.block_n):
        raise ValueError(f"split_size={split_size} must be a positive multiple of the block of {tiles.block_n} keys")
    seen = bounds.length if window is None else min(bounds.length, window + bounds.width - 1)
    if split_size is not None:
        # A window that does not begin where a split does touches one more.
        cut = seen if seen == bounds.length else min(bounds.length, seen + split_size - 1)
        num_splits = max(1, -(-cut // split_size))
    else:
        programs = batch * -(-bounds.width * group // tiles.block_m) * num_kv_heads
        num_splits = even_splits(programs, -(-seen // tiles.block_n), num_sms)
    return Plan(query_start, seq_lens, bounds.width, bounds.prefills, window, num_splits, split_size or 0, tiles)


def even_splits(programs: int, blocks: int, num_sms: int) -> int:
    """FlashAttention-3's ``num_splits_heuristic``: ``programs`` without splits, ``blocks`` of keys of the longest.

    One where they nearly fill the chip or there is little to split; else the fewest whose last wave leaves no more of
    it idle than 15 per cent beyond the best. (Its clause for keys that exceed the L2 cache asks for more tiles of one
    request than multiprocessors, which no decode has.)
    """
    if not programs or programs >= 0.8 * num_sms or blocks <= 4:
        return 1
    choices = range(1, min(MAX_SPLITS, num_sms, blocks) + 1)
    waves = [programs * splits / num_sms for splits in choices]
    filled = [wave / -(-programs * splits // num_sms) for wave, splits in zip(waves, choices, strict=True)]
    return next(splits for splits, part in zip(choices, filled, strict=True) if part >= 0.85 * max(filled))
