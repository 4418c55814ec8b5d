"""Attention over a paged cache of latents (MLA), with absorbed weights: all heads read the same rows.

A key is a whole row of the cache, the latent and the rotated part beside it; a value is the latent alone. So a block is
read once, for both products and for all heads of a program. The result of 64 heads and a latent of 512 is half of all
registers, and with the rest it spills: there two programs have a half each, and both work out all scores
(`latent_call.parts`). Programs are cut as in `paged_attention`: a decode by splits, joined by `merge_splits`, a chunk
by tiles; one source serves both. Absorbing and lifting are products that torch computes before and after
(`kernels.reference.absorb`, `lift`); keys and values are rebuilt in `expanded_latent`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_tiles import (
    load_rows,
    load_tokens,
    locate,
    offsets,
    queries_of,
    reach,
    store_rows,
    unpack,
)
from kernels.triton.attention_walk import finish, slots_of
from kernels.triton.latent_call import latent_variants, plan_for, prepare, refusal
from kernels.triton.merge_splits import merge_splits, shares
from kernels.triton.paged_plan import Plan
from kernels.triton.variants import Variant

__all__ = ["attend_latents", "paged_latent_attention", "refusal", "variants"]


@triton.jit
def _latent(
    q,
    cache,
    out,
    lse,
    cu_q,
    seq_lens,
    tables,
    batch,
    width,
    tiles_each,
    num_splits,
    split_size,
    stride_qt,
    stride_qh,
    stride_page,
    stride_kt,
    stride_table,
    stride_os,
    stride_ot,
    stride_oh,
    stride_ls,
    num_heads,
    to_log2,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_LSE: tl.constexpr,
    DECODE: tl.constexpr,
    PARTIAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """As `paged_attention._paged`, whose arguments these are; HEAD_DIM: of a latent, ROPE: of what lies behind it.

    PARTS: 1, or 2 where a program has all scores and one half of the result: ``mine`` is the first number of its half.
    """
    WIDTH: tl.constexpr = HEAD_DIM // PARTS
    HALF: tl.constexpr = PADDED // PARTS
    mine = tl.program_id(0) % PARTS * WIDTH if PARTS > 1 else 0
    if DECODE:
        split = tl.program_id(0) // PARTS % num_splits
        tile = tl.program_id(0) // PARTS // num_splits
        sequence = tile // tiles_each
        q_begin = tl.load(cu_q + sequence)
        q_len = tl.load(cu_q + sequence + 1) - q_begin
        first_row = tile % tiles_each * BLOCK_M
        if (q_len > width) | (first_row >= q_len * GROUP):
            return
    else:
        split = 0
        # The last queries see the most keys: the longest work first.
        tile = tl.num_programs(0) // PARTS - 1 - tl.program_id(0) // PARTS
        sequence = locate(cu_q, batch, tile, GROUP, BLOCK_M)
        q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
        if (q_len <= width) | (first_row >= q_len * GROUP):
            return
    k_len = tl.load(seq_lens + sequence)
    last = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
    _, highest = reach(last, q_len, k_len, 0, True, False)
    lowest = 0
    if DECODE:
        _, size, count = shares(num_splits, split_size, q_len, k_len, 0, BLOCK_N, True, False)
        if split >= count:
            return
        lowest = split * size
        highest = tl.minimum(highest, lowest + size)
    table = tables + sequence.to(tl.int64) * stride_table
    tokens, heads, real = unpack(first_row, q_len, 0, GROUP, BLOCK_M)
    at_q = offsets(q_begin, tokens, heads, stride_qt, stride_qh)
    q_mine = load_rows(q + mine, at_q, real, WIDTH, HALF)
    if PARTS == 2:
        q_other = load_rows(q + (WIDTH - mine), at_q, real, WIDTH, HALF)
    q_rotated = load_rows(q + HEAD_DIM, at_q, real, ROPE, PADDED_ROPE)
    own = k_len - q_len + tokens
    acc = tl.zeros([BLOCK_M, HALF], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for start in tl.range(lowest, highest, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        inside = columns < highest
        at = slots_of(table, columns, inside, stride_page, stride_kt, PAGE, True)
        latents = load_tokens(cache + mine, at, inside, WIDTH, HALF, True).to(q_mine.dtype)
        rotated = load_tokens(cache + HEAD_DIM, at, inside, ROPE, PADDED_ROPE, True).to(q_mine.dtype)
        s = tl.dot(q_rotated, tl.trans(rotated), input_precision=PRECISION)
        if PARTS == 2:
            other = load_tokens(cache + (WIDTH - mine), at, inside, WIDTH, HALF, True).to(q_mine.dtype)
            s = tl.dot(q_other, tl.trans(other), s, input_precision=PRECISION)
        s = tl.dot(q_mine, tl.trans(latents), s, input_precision=PRECISION)
        s = tl.where(columns[None, :] <= own[:, None], s * to_log2, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing seen yet: −inf − −inf would be NaN
        p = tl.exp2(s - shift[:, None])
        alpha = tl.exp2(m_i - shift)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(latents.dtype), latents, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    rows, log2_sum = finish(acc, l_i, m_i)
    if PARTIAL:
        q_begin = sequence * width
        out += split.to(tl.int64) * stride_os
        lse += split.to(tl.int64) * stride_ls
    else:
        log2_sum *= 0.6931471805599453
    store_rows(out + mine, offsets(q_begin, tokens, heads, stride_ot, stride_oh), real, rows, WIDTH, HALF)
    if HAS_LSE:  # which all parts know
        tl.store(lse + offsets(q_begin, tokens, heads, num_heads, 1), log2_sum, mask=real & (mine == 0))


def attend_latents(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    plan: Plan,
    *,
    rank: int,
    scale: float,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """`paged_latent_attention` with a plan made before, for each layer of a step; looks at no value on the device.

    Into ``lse`` ``[num_tokens, num_heads]`` float32, if given, goes the natural log-sum-exp. Raises ValueError for
    tensors that it cannot take.
    """
    call = prepare(q, cache, block_tables, plan, rank, scale, lse)
    return call.run(_latent, merge_splits)


def paged_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    *,
    rank: int,
    scale: float,
) -> torch.Tensor:
    """See `kernels.reference.paged_latent_attention`; the two lists may also be int32 tensors, whose values no one
    looks at. A plan of its own each time. Raises ValueError for what it does not take."""
    plan = plan_for(q, cache, block_tables, query_start, seq_lens, rank=rank)
    return attend_latents(q, cache, block_tables, plan, rank=rank, scale=scale)


def variants() -> list[Variant]:
    return latent_variants(_latent)
