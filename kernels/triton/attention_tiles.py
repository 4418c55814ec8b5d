"""What all rungs of attention share inside a kernel: whose rows a program has, which keys they see, a block's scores.

*Rows.* The query heads that share a KV head (a group, GQA) are packed: row r of a sequence is its token ``r // GROUP``
and head ``r % GROUP`` of the group, so one read of a key serves the whole group, and a group of 3 or 7 wastes no row.
A program has ``BLOCK_M`` rows of one sequence and one KV head. Offsets into tensors are 64 bits wide throughout.

*Head sizes* that are no power of two are padded to the next (80 and 96 to 128, 192 to 256): the padding is never read,
counts as zero and costs matrix products of the padded size.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def locate(cu_q, batch, tile, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The number of the sequence that a tile of rows belongs to.

    Tiles are numbered without asking the device how long sequences are: sequence b's begin at ``cu_q[b] · GROUP //
    BLOCK_M + b``, which leaves each at least as many as it needs.
    """
    low = 0
    high = batch
    while low < high:  # the first sequence whose tiles begin after this one
        middle = (low + high) // 2
        begin = tl.load(cu_q + middle).to(tl.int64) * GROUP // BLOCK_M + middle
        low = tl.where(begin <= tile, middle + 1, low)
        high = tl.where(begin <= tile, high, middle)
    return low - 1


@triton.jit
def queries_of(cu_q, sequence, tile, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of a sequence the first query and their number, and the tile's first row in it; past the last: nothing to do.

    The loads are volatile, so what a kernel works out from a second call is not known to equal the first. Otherwise the
    compiler would keep tokens, heads and masks of all rows through the loops: forty registers a thread.
    """
    begin = tl.load(cu_q + sequence, volatile=True)
    end = tl.load(cu_q + sequence + 1, volatile=True)
    first_tile = begin.to(tl.int64) * GROUP // BLOCK_M + sequence
    return begin, end - begin, (tile - first_tile).to(tl.int32) * BLOCK_M


@triton.jit
def keys_of(cu_k, sequence):
    """Of a sequence the first key and their number."""
    begin = tl.load(cu_k + sequence)
    return begin, tl.load(cu_k + sequence + 1) - begin


@triton.jit
def unpack(first_row, q_len, kv_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of a tile's rows, each ``[BLOCK_M]``: the token in its sequence, the query head, whether there is such a row."""
    rows = first_row + tl.arange(0, BLOCK_M)
    return rows // GROUP, kv_head * GROUP + rows % GROUP, rows < q_len * GROUP


@triton.jit
def offsets(q_begin, tokens, heads, stride_t, stride_h):
    """Where rows begin in a tensor of queries or results, in elements, ``[BLOCK_M]`` int64."""
    return (q_begin + tokens).to(tl.int64) * stride_t + heads.to(tl.int64) * stride_h


@triton.jit
def load_rows(x, at, real, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    """Rows at offsets ``at``, ``[BLOCK_M, PADDED]``; zeros where there is no row and in the padding."""
    dims = tl.arange(0, PADDED)
    return tl.load(x + at[:, None] + dims[None, :], mask=real[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def store_rows(x, at, real, rows, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    dims = tl.arange(0, PADDED)
    mask = real[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(x + at[:, None] + dims[None, :], rows.to(x.dtype.element_ty), mask=mask)


@triton.jit
def reach(tokens, q_len, k_len, window, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """A query sees the keys ``[low, high)``. The last query is the last token: causal is aligned at the end."""
    own = k_len - q_len + tokens
    if CAUSAL:
        high = tl.maximum(tl.minimum(own + 1, k_len), 0)
    else:
        high = own * 0 + k_len
    if HAS_WINDOW:
        low = tl.maximum(own - window + 1, 0)
    else:
        low = own * 0
    return low, high


@triton.jit
def load_block(
    source,
    stride_t,
    first_token,
    kv_head,
    start,
    lowest,
    highest,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Keys or values ``start … start + BLOCK_N`` of a sequence, ``[BLOCK_N, PADDED]``.

    ``source``: a pointer to the sequence's first token and head, or a descriptor of all tokens as ``[head, token,
    dim]``, whose copies the hardware makes (TMA) and which gives zeros past the last dim. MASKED: tokens outside
    ``[lowest, highest)`` are zeros, for a weight of 0 does not silence a NaN. A descriptor reads them (whatever they
    are, they lie inside the tensor or count as zero), so there they are replaced after loading.
    """
    columns = start + tl.arange(0, BLOCK_N)
    inside = (columns >= lowest) & (columns < highest)
    if DESCRIPTORS:
        block = source.load([kv_head, first_token + start, 0]).reshape(BLOCK_N, PADDED)
        if MASKED:
            block = tl.where(inside[:, None], block, tl.zeros_like(block))
    else:
        block = load_tokens(source, columns.to(tl.int64) * stride_t, inside, HEAD_DIM, PADDED, MASKED)
    return block


@triton.jit
def load_tokens(source, at, inside, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Keys or values at offsets ``at``, ``[BLOCK_N, PADDED]``; MASKED: zeros where not ``inside``."""
    dims = tl.arange(0, PADDED)
    places = source + at[:, None] + dims[None, :]
    if MASKED:
        block = tl.load(places, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM == PADDED:
        block = tl.load(places)
    else:
        block = tl.load(places, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    return block


@triton.jit
def score(
    q,
    keys,
    start,
    own,
    k_len,
    window,
    slope,
    cap,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of a tile's rows and a block of keys, ``[BLOCK_M, BLOCK_N]`` float32, not yet in the log2 domain.

    With a softcap ``cap · tanh(q · k · scale / cap)`` where ``slope = 2 · log2(e) · scale / cap``: written as ``1 − 2 /
    (e^2x + 1)`` an overflow to infinity gives 1, while ``(e^x − e^−x) / (e^x + e^−x)`` would give NaN. MASKED: −inf
    where row and key do not see each other, selected, not added, so that nothing a hidden key holds gets through.
    ``own`` [BLOCK_M]: each row's position among the keys; with the window one number a row is all that masks need.
    """
    scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    if HAS_CAP:
        scores = cap * (1.0 - 2.0 / (tl.exp2(scores * slope) + 1.0))
    if MASKED:
        columns = (start + tl.arange(0, BLOCK_N))[None, :]
        if CAUSAL:
            visible = columns <= own[:, None]
        else:
            visible = columns < k_len
        if HAS_WINDOW:
            visible = visible & (own[:, None] - columns < window)
        scores = tl.where(visible, scores, float("-inf"))
    return scores
