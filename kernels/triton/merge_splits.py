"""Joins the partial results of a decode whose keys were split: the second half of split-KV.

One program takes a query and a head, walks over the splits of its own request in order with a running softmax as over
blocks of keys, and writes the result once, rounded once. How many splits the batch's longest request has does not
matter to it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.triton.attention_call import padded_dim
from kernels.triton.attention_tiles import reach
from kernels.triton.variants import Variant

WARPS = 1
STAGES = 4


@triton.jit
def shares(
    num_splits,
    split_size,
    q_len,
    k_len,
    window,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """How a request's keys are cut: the first that is taken, the keys of a split, the number of splits, at least one.

    ``split_size`` keys each, beginning at multiples of it; if that is 0, even shares of ``num_splits``. Splits begin
    where blocks do. What comes before the window of the first query is left out.
    """
    lowest, _ = reach(0, q_len, k_len, window, CAUSAL, HAS_WINDOW)
    unit = tl.where(split_size > 0, split_size, BLOCK_N)
    origin = lowest // unit * unit
    even = tl.maximum(tl.cdiv(tl.cdiv(k_len - origin, BLOCK_N), num_splits), 1) * BLOCK_N
    size = tl.where(split_size > 0, split_size, even)
    return origin, size, tl.maximum(tl.cdiv(k_len - origin, size), 1)


@triton.jit
def _merge_splits(
    partial,
    partial_lse,
    out,
    lse,
    cu_q,
    seq_lens,
    width,
    num_splits,
    split_size,
    window,
    num_heads,
    stride_s,
    stride_ls,
    stride_ot,
    stride_oh,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    slot = tl.program_id(0)
    head = tl.program_id(1)
    sequence = slot // width
    token = slot % width
    q_begin = tl.load(cu_q + sequence)
    q_len = tl.load(cu_q + sequence + 1) - q_begin
    if (token >= q_len) | (q_len > width):  # such slots were not written
        return
    k_len = tl.load(seq_lens + sequence)
    _, _, count = shares(num_splits, split_size, q_len, k_len, window, BLOCK_N, CAUSAL, HAS_WINDOW)
    dims = tl.arange(0, PADDED)
    inside = dims < HEAD_DIM
    row = slot.to(tl.int64) * num_heads + head
    partial += row * HEAD_DIM
    partial_lse += row
    acc = tl.zeros([PADDED], tl.float32)
    l_i = 0.0
    m_i = float("-inf")
    for _ in tl.range(0, count):
        log2_sum = tl.load(partial_lse)
        rows = tl.load(partial + dims, mask=inside, other=0.0)
        m_new = tl.maximum(m_i, log2_sum)
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing so far: −inf − −inf would be NaN
        alpha = tl.exp2(m_i - shift)
        weight = tl.exp2(log2_sum - shift)
        acc = acc * alpha + rows * weight
        l_i = l_i * alpha + weight
        m_i = m_new
        partial += stride_s
        partial_lse += stride_ls
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    token_at = (q_begin + token).to(tl.int64)
    at = out + token_at * stride_ot + head.to(tl.int64) * stride_oh + dims
    tl.store(at, (acc / l_safe).to(out.dtype.element_ty), mask=inside)
    if HAS_LSE:
        tl.store(lse + token_at * num_heads + head, (m_i + tl.log2(l_safe)) * 0.6931471805599453)


def merge_splits(partial: torch.Tensor, partial_lse: torch.Tensor, **values: Any) -> None:
    """Fills the rows of ``out`` (and ``lse``) that belong to requests with at most ``width`` queries.

    partial ``[num_splits, batch · width, num_heads, head_dim]`` float32, partial_lse its log-sum-exp to base 2 without
    the last dimension: query i of request b at ``b · width + i``, results already divided by their sums. ``values``:
    the other arguments by their names in the kernels, as `paged_call.Call` has them.
    """
    named = {name: values[name] for name in _merge_splits.arg_names if name in values}
    named |= {"partial": partial, "partial_lse": partial_lse}
    named |= {"stride_s": partial.stride(0), "stride_ls": partial_lse.stride(0)}
    _merge_splits[partial.shape[1:3]](**named, num_warps=WARPS, num_stages=STAGES)


def variants() -> list[Variant]:
    """One query a request; 32 heads or any other multiple of 16."""
    numbers = ("num_splits", "split_size", "window", "num_heads", "stride_s", "stride_ls", "stride_ot", "stride_oh")
    signature = {
        **dict.fromkeys(("partial", "partial_lse"), "*fp32"),
        "out": "*bf16",
        **dict.fromkeys(("cu_q", "seq_lens"), "*i32"),
        **dict.fromkeys(numbers, "i32"),
    }
    pointers = ("partial", "partial_lse", "out", "cu_q", "seq_lens")
    return [
        Variant(
            name=f"d{head_dim}",
            kernel=_merge_splits,
            signature=signature,
            constexprs={
                **{"width": 1, "lse": None, "HAS_LSE": False},
                **{"BLOCK_N": 64, "CAUSAL": True, "HAS_WINDOW": True},
                **{"HEAD_DIM": head_dim, "PADDED": padded_dim(head_dim)},
            },
            divisible_by_16=(*pointers, "num_heads", "stride_s", "stride_ot", "stride_oh"),
            num_warps=WARPS,
            num_stages=STAGES,
            wants=("ldg.128",),
        )
        for head_dim in (128, 192)
    ]
