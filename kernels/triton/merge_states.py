"""Merging two partial results of attention: a split of the keys over programs, or a shared prefix and what follows it.

One program takes ``ROWS`` rows (a token and a head); tokens are on grid x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_call import padded_dim, refusal_of_heads
from kernels.triton.launch import require, strange
from kernels.triton.variants import Variant

ROWS = 16
WARPS = 4


@triton.jit
def _merge(
    out_a,
    lse_a,
    out_b,
    lse_b,
    out,
    lse,
    num_rows,
    num_heads,
    stride_at,
    stride_ah,
    stride_lat,
    stride_lah,
    stride_bt,
    stride_bh,
    stride_lbt,
    stride_lbh,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = rows < num_rows
    tokens, heads = rows // num_heads, rows % num_heads
    dims = tl.arange(0, PADDED)
    inside = (dims < HEAD_DIM)[None, :]
    nothing = float("-inf")
    a = tl.load(lse_a + tokens * stride_lat + heads * stride_lah, mask=real, other=nothing)
    b = tl.load(lse_b + tokens * stride_lbt + heads * stride_lbh, mask=real, other=nothing)
    top = tl.maximum(a, b)
    shift = tl.where(top == nothing, 0.0, top)  # two empty states: −inf − −inf would be NaN
    weight_a = tl.exp2((a - shift) * 1.4426950408889634)
    weight_b = tl.exp2((b - shift) * 1.4426950408889634)
    total = weight_a + weight_b
    # What an empty state's out holds is not read: its weight of 0 would not silence a NaN.
    at_a = out_a + (tokens * stride_at + heads * stride_ah)[:, None] + dims[None, :]
    at_b = out_b + (tokens * stride_bt + heads * stride_bh)[:, None] + dims[None, :]
    x = tl.load(at_a, mask=(weight_a != 0.0)[:, None] & inside, other=0.0).to(tl.float32)
    y = tl.load(at_b, mask=(weight_b != 0.0)[:, None] & inside, other=0.0).to(tl.float32)
    merged = (weight_a[:, None] * x + weight_b[:, None] * y) / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + (rows * HEAD_DIM)[:, None] + dims[None, :]
    tl.store(at, merged.to(out.dtype.element_ty), mask=real[:, None] & inside)
    merged_lse = tl.where(total == 0.0, nothing, shift + tl.log2(total) * 0.6931471805599453)
    tl.store(lse + rows, merged_lse, mask=real)


def refusal(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> str:
    """Why these tensors cannot be taken; empty if they can."""
    for name, out, lse in (("a", out_a, lse_a), ("b", out_b, lse_b)):
        if out.ndim != 3 or out.shape != out_a.shape or lse.shape != out.shape[:2] or lse.dtype != torch.float32:
            return (
                f"out_{name} {list(out.shape)}, lse_{name} {list(lse.shape)} {lse.dtype}: both outs must be alike, "
                "[num_tokens, num_heads, head_dim], and lse float32 [num_tokens, num_heads]"
            )
        if out.device != out_a.device or lse.device != out_a.device:
            return f"out_{name} is on {out.device}, lse_{name} on {lse.device}, out_a on {out_a.device}"
    reason = refusal_of_heads(out_a.shape[2], out_a.dtype, out_a.device)
    return reason or strange(out_a=out_a, out_b=out_b)


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.merge_states`. Raises ValueError for tensors that do not fit together."""
    require("merge_states", refusal(out_a, lse_a, out_b, lse_b))
    num_tokens, num_heads, head_dim = out_a.shape
    out, lse = out_a.new_empty(out_a.shape), torch.empty(lse_a.shape, dtype=torch.float32, device=out_a.device)
    num_rows = num_tokens * num_heads
    if num_rows:
        strides = (*out_a.stride()[:2], *lse_a.stride(), *out_b.stride()[:2], *lse_b.stride())
        _merge[(triton.cdiv(num_rows, ROWS),)](
            out_a, lse_a, out_b, lse_b, out, lse, num_rows, num_heads, *strides,
            HEAD_DIM=head_dim, PADDED=padded_dim(head_dim), ROWS=ROWS, num_warps=WARPS,
        )  # fmt: skip
    return out, lse


def variants() -> list[Variant]:
    """The head sizes of models, whose strides are multiples of 16."""
    ends = ("a", "b")
    outs, lses = [f"out_{x}" for x in ends], [f"lse_{x}" for x in ends]
    strides = [f"stride_{x}{y}" for x in ends for y in ("t", "h")]
    signature = {
        **dict.fromkeys([*outs, "out"], "*bf16"),
        **dict.fromkeys([*lses, "lse"], "*fp32"),
        **dict.fromkeys(["num_rows", "num_heads", *strides, "stride_lat", "stride_lbt"], "i32"),
    }
    return [
        Variant(
            name=f"merge-d{head_dim}",
            kernel=_merge,
            signature=signature,
            constexprs={
                "stride_lah": 1,
                "stride_lbh": 1,
                "HEAD_DIM": head_dim,
                "PADDED": padded_dim(head_dim),
                "ROWS": ROWS,
            },
            divisible_by_16=(*outs, "out", *lses, "lse", *strides),
            num_warps=WARPS,
            wants=("ldg.128", "stg.128"),
        )
        for head_dim in (64, 80, 128, 256)
    ]
