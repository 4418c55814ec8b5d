"""Attention that reads keys and values where they lie: in the pages of a cache, through block tables.

One source, compiled apart for two uses, for a kernel that holds both branches is slow at either:

- **Decode**: few queries a request, reading keys is all that takes time. A program has one request's rows of a KV head
  and one split of its keys; with more than one split partial results go to a workspace, in the log2 domain, and
  `merge_splits` joins them (`kernels.triton.paged_plan`: how many splits, and when bits do not depend on the batch).
- **Prefill**: chunks of prompts of mixed lengths, tiles of many queries as in FlashAttention, wherever they begin.

A batch that holds both is two launches, each leaving the other's requests alone. Pages may have any number of tokens,
also one or seventeen: a block of keys looks up the page of every key. Only pages that hold a key in reach are read, and
of the block table only their entries. Sinks belong to the first split. Keys and values come through pointers; a copy by
descriptor (TMA) would need pages that are no smaller than a block. Backward is out of scope.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tiles import load_rows, locate, offsets, queries_of, reach, store_rows, unpack
from kernels.triton.attention_walk import finish, nothing_yet, walk, walk_all
from kernels.triton.merge_splits import merge_splits, shares
from kernels.triton.paged_call import plan_for, prepare, refusal
from kernels.triton.paged_plan import Plan
from kernels.triton.paged_variants import paged_variants
from kernels.triton.variants import Variant

__all__ = ["attend", "paged_attention", "refusal", "variants"]


@triton.jit
def _paged(
    q,
    k,
    v,
    out,
    lse,
    cu_q,
    seq_lens,
    tables,
    sinks,
    batch,
    width,
    tiles_each,
    num_splits,
    split_size,
    stride_qt,
    stride_qh,
    stride_page,
    stride_kt,
    stride_kh,
    stride_table,
    stride_os,
    stride_ot,
    stride_oh,
    stride_ls,
    num_heads,
    window,
    to_log2,
    slope,
    cap,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    DECODE: tl.constexpr,
    PARTIAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``width``: requests with at most so many queries decode. Decoding, grid x counts request, tile, split; else tiles
    (`attention_tiles.locate`). PARTIAL: ``out`` and ``lse`` are workspaces with ``width`` rows for each request."""
    kv_head = tl.program_id(1)
    if DECODE:
        split = tl.program_id(0) % num_splits
        tile = tl.program_id(0) // num_splits
        sequence = tile // tiles_each
        q_begin = tl.load(cu_q + sequence)
        q_len = tl.load(cu_q + sequence + 1) - q_begin
        first_row = tile % tiles_each * BLOCK_M
        if (q_len > width) | (first_row >= q_len * GROUP):
            return
    else:
        split = 0
        tile = tl.program_id(0)
        if CAUSAL:
            tile = tl.num_programs(0) - 1 - tile  # the last queries see the most keys: the longest work first
        sequence = locate(cu_q, batch, tile, GROUP, BLOCK_M)
        q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
        if (q_len <= width) | (first_row >= q_len * GROUP):
            return
    k_len = tl.load(seq_lens + sequence)
    if DECODE:
        origin, size, count = shares(
            num_splits, split_size, q_len, k_len, window, BLOCK_N, CAUSAL, HAS_WINDOW
        )  # fmt: skip
        if split >= count:
            return
    table = tables + sequence.to(tl.int64) * stride_table
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    q_tile = load_rows(q, offsets(q_begin, tokens, heads, stride_qt, stride_qh), real, HEAD_DIM, PADDED)
    own = k_len - q_len + tokens
    k += kv_head.to(tl.int64) * stride_kh
    v += kv_head.to(tl.int64) * stride_kh
    acc, l_i, m_i = nothing_yet(sinks, heads, real & (split == 0), BLOCK_M, PADDED, HAS_SINKS)
    if DECODE:
        lowest, _ = reach(first_row // GROUP, q_len, k_len, window, CAUSAL, HAS_WINDOW)
        _, highest = reach(q_len - 1, q_len, k_len, window, CAUSAL, HAS_WINDOW)
        lowest = tl.maximum(lowest, origin + split * size)
        highest = tl.minimum(highest, origin + (split + 1) * size)
        # All blocks masked: a mask costs nothing beside the memory, and one loop less to fill and drain does.
        acc, l_i, m_i = walk(
            acc, l_i, m_i, q_tile, k, v, table, stride_kt, stride_kt, stride_page, 0, kv_head,
            lowest // BLOCK_N * BLOCK_N, highest, own, k_len, window, lowest, highest, to_log2, slope, cap,
            HEAD_DIM, PADDED, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, False, PAGE, PRECISION,
        )  # fmt: skip
    else:
        acc, l_i, m_i = walk_all(
            acc, l_i, m_i, q_tile, k, v, table, stride_kt, stride_kt, stride_page, 0, kv_head,
            first_row, own, q_len, k_len, window, to_log2, slope, cap,
            GROUP, HEAD_DIM, PADDED, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW, HAS_CAP, False, PAGE, PRECISION,
        )  # fmt: skip
        # The same rows as before, worked out anew so that nothing of them is kept through the loops.
        q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
        tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    rows, log2_sum = finish(acc, l_i, m_i)
    if PARTIAL:
        q_begin = sequence * width
        out += split.to(tl.int64) * stride_os
        lse += split.to(tl.int64) * stride_ls
    else:
        log2_sum *= 0.6931471805599453
    store_rows(out, offsets(q_begin, tokens, heads, stride_ot, stride_oh), real, rows, HEAD_DIM, PADDED)
    if HAS_LSE:
        tl.store(lse + offsets(q_begin, tokens, heads, num_heads, 1), log2_sum, mask=real)


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    plan: Plan,
    *,
    scale: float,
    causal: bool = True,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`paged_attention` with a plan made before, for each layer of a step; looks at no value on the device.

    ``causal``, ``softcap`` and ``sinks`` as in `kernels.reference.flash_attention`. Into ``lse`` ``[num_tokens,
    num_heads]`` float32, if given, goes the natural log-sum-exp, into ``out`` of any float type the result; else that
    is new and of q's type. Raises ValueError for tensors that it cannot take.
    """
    call = prepare(q, cache, block_tables, plan, scale, causal, softcap, sinks, lse, out)
    return call.run(_paged, merge_splits)


def paged_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """See `kernels.reference.paged_attention`; the two lists may also be int32 tensors, whose values no one looks at.

    For speed: a plan of its own each time (`paged_call.plan_for`), splits by the number of multiprocessors. Raises
    ValueError for what it does not take.
    """
    plan = plan_for(q, cache, block_tables, query_start, seq_lens, window=window)
    return attend(q, cache, block_tables, plan, scale=scale)


def variants() -> list[Variant]:
    return paged_variants(_paged)
