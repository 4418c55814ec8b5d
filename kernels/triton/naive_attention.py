"""The first rung: attention as it is written down, in three kernels with the scores in memory between them.

Every score is written once, read three times and written again by the softmax (highest, sum, weights; the second and
third time it may still lie in a cache), and read by the product: ``4 · total_q · num_heads · max_k`` bytes of memory,
and four to six times as many carried. That grows with the product of the lengths, while queries, keys, values and the
result grow with their sum. Where the scores do not fit, it fails; elsewhere memory is what it waits for.
`kernels.triton.tiled_attention` keeps the scores on the chip. Backward is out of scope.

The host must know the longest sequence to make room for scores, so it waits for the device once. All blocks are masked
and none is skipped.
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
from kernels.triton.launch import interpreted
from kernels.triton.variants import Variant

SOFTMAX = {"ROWS": 4, "BLOCK_N": 256}


@triton.jit
def _scores(
    q,
    k,
    scores,
    cu_q,
    cu_k,
    batch,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    num_heads,
    max_k,
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
    PRECISION: tl.constexpr,
):
    """``scores[token, head, key]`` in the log2 domain, −inf where hidden or past the sequence's last key."""
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
    k += k_begin.to(tl.int64) * stride_kt + kv_head.to(tl.int64) * stride_kh
    at = offsets(q_begin, tokens, heads, num_heads, 1) * max_k
    for start in tl.range(0, max_k, BLOCK_N):
        keys = load_block(k, stride_kt, 0, 0, start, 0, k_len, HEAD_DIM, PADDED, BLOCK_N, True, False)
        s = score(
            q_tile, keys, start, own, k_len, window, slope, cap, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, PRECISION
        )
        columns = start + tl.arange(0, BLOCK_N)
        tl.store(scores + at[:, None] + columns[None, :], s * to_log2, mask=real[:, None] & (columns < max_k)[None, :])


@triton.jit
def _softmax(
    scores, lse, sinks, num_rows, num_heads, max_k, HAS_SINKS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Rows of scores, in place: weights that add up to 1 (less the sink's), or all 0 where there is no key."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_N)
    real = rows < num_rows
    at = scores + (rows * max_k)[:, None] + columns[None, :]
    sink = tl.full([ROWS], float("-inf"), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + rows % num_heads, mask=real, other=0.0) * 1.4426950408889634
    # Sinks join after the loops: Triton 3.6 stops at a loop's maximum or sum that is used more than once.
    m_i = tl.full([ROWS], float("-inf"), tl.float32)
    for start in tl.range(0, max_k, BLOCK_N):
        s = tl.load(at + start, mask=real[:, None] & (start + columns < max_k)[None, :], other=float("-inf"))
        m_i = tl.maximum(m_i, tl.max(s, 1))
    m_i = tl.maximum(m_i, sink)
    shift = tl.where(m_i == float("-inf"), 0.0, m_i)
    l_i = tl.zeros([ROWS], tl.float32)
    for start in tl.range(0, max_k, BLOCK_N):
        s = tl.load(at + start, mask=real[:, None] & (start + columns < max_k)[None, :], other=float("-inf"))
        l_i += tl.sum(tl.exp2(s - shift[:, None]), 1)
    l_i += tl.exp2(sink - shift)
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    for start in tl.range(0, max_k, BLOCK_N):
        mask = real[:, None] & (start + columns < max_k)[None, :]
        s = tl.load(at + start, mask=mask, other=float("-inf"))
        tl.store(at + start, tl.exp2(s - shift[:, None]) / l_safe[:, None], mask=mask)
    tl.store(lse + rows, (m_i + tl.log2(l_safe)) * 0.6931471805599453, mask=real)


@triton.jit
def _product(
    scores,
    v,
    out,
    cu_q,
    cu_k,
    batch,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    num_heads,
    max_k,
    window,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Weights times values."""
    kv_head = tl.program_id(1)
    tile = tl.program_id(0)
    sequence = locate(cu_q, batch, tile, GROUP, BLOCK_M)
    q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
    k_begin, k_len = keys_of(cu_k, sequence)
    if first_row >= q_len * GROUP:
        return
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    # Values that no row of the tile sees are not to be read: a weight of 0 does not silence a NaN.
    last = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
    lowest, _ = reach(first_row // GROUP, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    _, highest = reach(last, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    v += k_begin.to(tl.int64) * stride_vt + kv_head.to(tl.int64) * stride_vh
    at = offsets(q_begin, tokens, heads, num_heads, 1) * max_k
    acc = tl.zeros([BLOCK_M, PADDED], tl.float32)
    for start in tl.range(0, k_len, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        mask = real[:, None] & (columns < max_k)[None, :]
        p = tl.load(scores + at[:, None] + columns[None, :], mask=mask, other=0.0)
        values = load_block(v, stride_vt, 0, 0, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, True, False)
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
    store_rows(out, offsets(q_begin, tokens, heads, stride_ot, stride_oh), real, acc, HEAD_DIM, PADDED)


def naive_attention(
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
    if call.empty():
        return call.out, call.lse
    num_rows = q.shape[0] * q.shape[1]
    # Rows of scores begin at multiples of 16, so that several are read at once.
    max_k = 16 * triton.cdiv(int(cu_seqlens_k.diff().max()), 16)
    scores = torch.empty(q.shape[0], q.shape[1], max_k, dtype=torch.float32, device=q.device)
    call.launch(_scores, scores=scores, max_k=max_k)
    softmax = SOFTMAX | ({"ROWS": 64} if interpreted() else {})
    grid = (triton.cdiv(num_rows, softmax["ROWS"]),)
    call.run(_softmax, grid, scores=scores, max_k=max_k, num_rows=num_rows, **softmax)
    call.launch(_product, scores=scores, max_k=max_k)
    return call.out, call.lse


def variants() -> list[Variant]:
    """As the notebook compares them: head size 128, causal."""
    found = []
    for arch in (80, 90, 100):
        scores = attention_variant("scores", _scores, arch, 128, wants=("mma",))
        product = attention_variant("product", _product, arch, 128, wants=("mma",))
        softmax = attention_variant("softmax", _softmax, arch, 128, **SOFTMAX)
        found += [scores, product, softmax]
    return found
