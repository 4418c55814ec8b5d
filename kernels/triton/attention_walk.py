"""The walk of FlashAttention over keys, whether those lie one after the other or in pages: a tile's running softmax.

For each row a tile carries the highest score so far ``m_i`` (log2 domain), the sum ``l_i`` of ``exp2(score − m_i)`` and
the result times that sum; when a higher score turns up, sum and result are scaled down to it (online softmax, Milakov
and Gimelshein 2018). `flash_attention` and `paged_attention` differ in whose rows a tile has and which keys it takes,
not in this.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.attention_tiles import load_block, load_tokens, reach, score


@triton.jit
def nothing_yet(sinks, heads, counts, BLOCK_M: tl.constexpr, PADDED: tl.constexpr, HAS_SINKS: tl.constexpr):
    """``acc``, ``l_i``, ``m_i`` before the first key. ``counts`` [BLOCK_M]: rows that begin with their head's sink."""
    if HAS_SINKS:
        m_i = tl.load(sinks + heads, mask=counts, other=float("-inf")) * 1.4426950408889634
        l_i = tl.where(m_i == float("-inf"), 0.0, 1.0)
    else:
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
    return tl.zeros([BLOCK_M, PADDED], tl.float32), l_i, m_i


@triton.jit
def finish(acc, l_i, m_i):
    """The rows of the result and their log-sum-exp to base 2. A row without keys has 0 and −inf (its ``m_i``)."""
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    return acc / l_safe[:, None], m_i + tl.log2(l_safe)


@triton.jit
def online_step(m_i, s, to_log2, MASKED: tl.constexpr):
    """A block's scores ``s`` [BLOCK_M, BLOCK_N] meet the highest so far ``m_i`` [BLOCK_M], log2 domain. Returns the new
    highest, the block's weights, and by what each row's sum and result so far are to be multiplied."""
    m_new = tl.maximum(m_i, tl.max(s, 1) * to_log2)
    # A row that has seen no key yet: −inf − −inf would be NaN.
    if MASKED:
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        shift = m_new
    p = tl.exp2(s * to_log2 - shift[:, None])
    alpha = tl.exp2(m_i - shift)
    return m_new, p, alpha


@triton.jit
def bounds(
    first_row,
    q_len,
    k_len,
    window,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Which keys a tile walks over: ``[lowest, highest)`` some row sees, in blocks from ``begin`` on; the blocks in
    ``[whole_begin, whole_end)`` every row sees whole."""
    # Reaches grow with the token: the tile's first and last token bound them all.
    last = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
    lowest, all_end = reach(first_row // GROUP, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    all_begin, highest = reach(last, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    begin = lowest // BLOCK_N * BLOCK_N
    whole_begin = tl.minimum(tl.cdiv(all_begin, BLOCK_N) * BLOCK_N, tl.cdiv(highest, BLOCK_N) * BLOCK_N)
    whole_end = tl.maximum(all_end // BLOCK_N * BLOCK_N, whole_begin)
    return lowest, highest, begin, whole_begin, whole_end


@triton.jit
def slots_of(table, columns, inside, stride_page, stride_t, PAGE: tl.constexpr, MASKED: tl.constexpr):
    """Where tokens ``columns`` lie that are spread over pages of PAGE tokens, in elements, int64. MASKED: the table is
    read for those ``inside`` only, for behind a request's last page it may hold anything."""
    if MASKED:
        pages = tl.load(table + columns // PAGE, mask=inside, other=0)
    else:
        pages = tl.load(table + columns // PAGE)
    return pages.to(tl.int64) * stride_page + (columns % PAGE).to(tl.int64) * stride_t


@triton.jit
def walk(
    acc,
    l_i,
    m_i,
    q,
    k,
    v,
    table,
    stride_kt,
    stride_vt,
    stride_page,
    k_begin,
    kv_head,
    begin,
    end,
    own,
    k_len,
    window,
    lowest,
    highest,
    to_log2,
    slope,
    cap,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The keys ``[begin, end)``, whole blocks: returns ``acc`` [BLOCK_M, PADDED], ``l_i`` and ``m_i`` [BLOCK_M].

    ``own`` [BLOCK_M]: each row's position; ``[lowest, highest)``: keys that any row of the tile sees. ``PAGE``: tokens
    of a page, k and v then point at page 0 and ``table`` at the sequence's list of pages; 0: nothing is paged.
    """
    for start in tl.range(begin, end, BLOCK_N):
        if PAGE:
            columns = start + tl.arange(0, BLOCK_N)
            inside = (columns >= lowest) & (columns < highest)
            at = slots_of(table, columns, inside, stride_page, stride_kt, PAGE, MASKED)
            keys = load_tokens(k, at, inside, HEAD_DIM, PADDED, MASKED).to(q.dtype)
        else:
            keys = load_block(
                k, stride_kt, k_begin, kv_head, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, MASKED, DESCRIPTORS
            )
        s = score(
            q, keys, start, own, k_len, window, slope, cap, BLOCK_N, MASKED, CAUSAL, HAS_WINDOW, HAS_CAP, PRECISION
        )
        m_new, p, alpha = online_step(m_i, s, to_log2, MASKED)
        l_i = l_i * alpha + tl.sum(p, 1)
        if PAGE:
            values = load_tokens(v, at, inside, HEAD_DIM, PADDED, MASKED).to(q.dtype)
        else:
            values = load_block(
                v, stride_vt, k_begin, kv_head, start, lowest, highest, HEAD_DIM, PADDED, BLOCK_N, MASKED, DESCRIPTORS
            )
        acc = tl.dot(p.to(values.dtype), values, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def walk_all(
    acc,
    l_i,
    m_i,
    q,
    k,
    v,
    table,
    stride_kt,
    stride_vt,
    stride_page,
    k_begin,
    kv_head,
    first_row,
    own,
    q_len,
    k_len,
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
    DESCRIPTORS: tl.constexpr,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All keys that a tile of many tokens sees: those that every row sees whole without masks, only the edges masked.

    Blocks that no row sees are skipped: past the diagonal, before the window.
    """
    lowest, highest, begin, whole_begin, whole_end = bounds(
        first_row, q_len, k_len, window, GROUP, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW
    )
    if HAS_WINDOW:
        acc, l_i, m_i = walk(
            acc, l_i, m_i, q, k, v, table, stride_kt, stride_vt, stride_page, k_begin, kv_head, begin, whole_begin,
            own, k_len, window, lowest, highest, to_log2, slope, cap,
            HEAD_DIM, PADDED, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, DESCRIPTORS, PAGE, PRECISION,
        )  # fmt: skip
    acc, l_i, m_i = walk(
        acc, l_i, m_i, q, k, v, table, stride_kt, stride_vt, stride_page, k_begin, kv_head, whole_begin, whole_end,
        own, k_len, window, lowest, highest, to_log2, slope, cap,
        HEAD_DIM, PADDED, BLOCK_N, False, CAUSAL, HAS_WINDOW, HAS_CAP, DESCRIPTORS, PAGE, PRECISION,
    )  # fmt: skip
    return walk(
        acc, l_i, m_i, q, k, v, table, stride_kt, stride_vt, stride_page, k_begin, kv_head, whole_end, highest,
        own, k_len, window, lowest, highest, to_log2, slope, cap,
        HEAD_DIM, PADDED, BLOCK_N, True, CAUSAL, HAS_WINDOW, HAS_CAP, DESCRIPTORS, PAGE, PRECISION,
    )  # fmt: skip
