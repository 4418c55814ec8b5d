"""The second rung: attention in tiles, in two passes over the keys, so that no score goes to memory.

A program keeps ``BLOCK_M`` rows of queries. The first pass finds each row's highest score; the second computes the same
scores again, now knows what to subtract, and adds up the weights and the weighted values. It is the plain safe
softmax, cut into blocks: nothing grows with the product of the lengths any more, but every key is read twice and half
of the arithmetic is done twice. FlashAttention (`kernels.triton.flash_attention`) is what becomes of it when the two
passes are made one. All blocks are masked and none is skipped here. Backward is out of scope.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_call import prepare
from kernels.triton.attention_tiles import (
    keys_of,
    load_block,
    load_rows,
    locate,
    offsets,
    queries_of,
    reach,
    score,
    store_rows,
    unpack,
)
from kernels.triton.attention_variants import attention_variant
from kernels.triton.flash_tiles import Tiles
from kernels.triton.variants import Variant


@triton.jit
def _tiled(
    q,
    k,
    v,
    out,
    lse,
    cu_q,
    cu_k,
    sinks,
    batch,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
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
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(1)
    tile = tl.program_id(0)
    sequence = locate(cu_q, batch, tile, GROUP, BLOCK_M)
    q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
    k_begin, k_len = keys_of(cu_k, sequence)
    if first_row >= q_len * GROUP:
        return
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    q_tile = load_rows(q, offsets(q_begin, tokens, heads, stride_qt, stride_qh), real, HEAD_DIM, PADDED)
    own = k_len - q_len + tokens
    # Values outside what the tile's first and last token bound are not to be read, whatever their weight.
    last = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
    lowest, _ = reach(first_row // GROUP, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    _, highest = reach(last, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    k += k_begin.to(tl.int64) * stride_kt + kv_head.to(tl.int64) * stride_kh
    v += k_begin.to(tl.int64) * stride_vt + kv_head.to(tl.int64) * stride_vh
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=real, other=float("-inf")) * 1.4426950408889634
    else:
        sink = tl.full([BLOCK_M], float("-inf"), tl.float32)

    m_i = sink
    for start in tl.range(0, k_len, BLOCK_N):
        keys = load_block(k, stride_kt, 0, 0, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, True, False)
        s = score(
            q_tile, keys, start, own, k_len, window, slope, cap, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, PRECISION
        )
        m_i = tl.maximum(m_i, tl.max(s, 1) * to_log2)
    shift = tl.where(m_i == float("-inf"), 0.0, m_i)  # a row without keys: −inf − −inf would be NaN

    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PADDED], tl.float32)
    for start in tl.range(0, k_len, BLOCK_N):
        keys = load_block(k, stride_kt, 0, 0, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, True, False)
        s = score(
            q_tile, keys, start, own, k_len, window, slope, cap, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, PRECISION
        )
        p = tl.exp2(s * to_log2 - shift[:, None])
        l_i += tl.sum(p, 1)
        values = load_block(v, stride_vt, 0, 0, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, True, False)
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)

    l_i += tl.exp2(sink - shift)  # after the loop: Triton 3.6 may stop at a loop's sum that is used more than once
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    # The same rows as before, worked out anew so that nothing of them is kept through the loops.
    q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    at = offsets(q_begin, tokens, heads, stride_ot, stride_oh)
    store_rows(out, at, real, acc / l_safe[:, None], HEAD_DIM, PADDED)
    natural = (m_i + tl.log2(l_safe)) * 0.6931471805599453
    tl.store(lse + offsets(q_begin, tokens, heads, num_heads, 1), natural, mask=real)


def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    config: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.flash_attention`; ``config`` overrules the table of tile sizes."""
    call = prepare(
        q, k, v, cu_seqlens_q, cu_seqlens_k,
        scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks, config=config,
    )  # fmt: skip
    call.launch(_tiled)
    return call.out, call.lse


def variants() -> list[Variant]:
    """As the notebook compares them: head size 128, causal."""
    return [attention_variant("tiled", _tiled, arch, 128, wants=("mma",)) for arch in (80, 90, 100)]
