"""RMSNorm in Triton, with the residual's addition in the same pass; see `kernels.reference.rms_norm` for what.

Apart, the addition reads two tensors and writes one, and the norm reads that one again and writes another. Here a row
is read once, stays in registers while its squares are summed, and leaves as the new stream and the normalized row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.triton.launch import as_rows, require, shared, strange
from kernels.triton.variants import Variant

WIDEST = 65536
"""Numbers of a row that registers still hold."""


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, x_stride, residual_stride, rows, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < WIDTH)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        stream_ptr = residual_ptr + row * residual_stride + column
        stream = tl.load(stream_ptr, mask=inside, other=0.0)
        # Rounded before it is normalized: the norm sees the very numbers that the next layer will read.
        stream = (x + stream.to(tl.float32)).to(stream.dtype)
        tl.store(stream_ptr, stream, mask=inside)
        x = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = x * scale[:, None] * weight
    tl.store(out_ptr + row * WIDTH + column, normed.to(out_ptr.dtype.element_ty), mask=inside)


class Config(NamedTuple):
    """ROWS × BLOCK numbers belong to a program."""

    ROWS: int
    BLOCK: int
    num_warps: int


def config(width: int) -> Config:
    """Several short rows a program, sixteen numbers a thread: two reads of 16 bytes each in bfloat16."""
    block = triton.next_power_of_2(width)
    rows = max(1, min(16, 2048 // block))
    return Config(rows, block, max(1, min(32 if block > 32768 else 16, rows * block // 512)))


def refusal(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> str:
    """Why these tensors cannot be taken; empty if they can."""
    if not 0 < x.shape[-1] <= WIDEST:
        return f"rows of {x.shape[-1]} numbers, and it takes 1 to {WIDEST}"
    if weight.shape != x.shape[-1:] or (residual is not None and residual.shape != x.shape):
        return f"x {list(x.shape)}, weight {list(weight.shape)} and the residual do not fit together"
    if residual is not None and as_rows(residual) is None:
        return f"rows of the residual are not a fixed distance apart (strides {residual.stride()})"
    if reason := shared(residual=residual):
        return reason
    return strange(weight=weight, residual=residual) or (strange(x=x) if x.dtype.is_floating_point else "x: no floats")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None) -> torch.Tensor:
    """As `kernels.reference.rms_norm`. Raises ValueError for what it cannot take (`refusal`)."""
    require("rms_norm", refusal(x, weight, residual), x, weight, residual)
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype if residual is None else residual.dtype, device=x.device)
    rows = as_rows(x)
    rows = x.reshape(-1, width) if rows is None else rows
    stream = None if residual is None else as_rows(residual)
    if len(rows):
        chosen = config(width)
        _rms_norm[(triton.cdiv(len(rows), chosen.ROWS),)](
            rows, stream, weight, out, rows.stride(0), 0 if stream is None else stream.stride(0), len(rows), eps,
            WIDTH=width, **chosen._asdict(),
        )  # fmt: skip
    return out


def variants() -> list[Variant]:
    """Widths of common models; bfloat16 with the residual, which is what a decoder launches."""
    pointers, strides = ("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"), ("x_stride", "residual_stride")
    types = dict.fromkeys(pointers, "*bf16") | dict.fromkeys((*strides, "rows"), "i32") | {"eps": "fp32"}
    made = []
    for width in (576, 2048, 4096, 8192, 16384):
        chosen = config(width)
        made.append(
            Variant(
                name=f"bf16-residual-{width}",
                kernel=_rms_norm,
                signature=types,
                constexprs={"WIDTH": width, "ROWS": chosen.ROWS, "BLOCK": chosen.BLOCK},
                divisible_by_16=(*pointers, *strides),
                num_warps=chosen.num_warps,
                wants=("ldg.128", "stg.128"),
            )
        )
    return made
