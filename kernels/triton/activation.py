"""SiLU · mul in Triton; see `kernels.reference.silu_mul` for what. One pass: two reads and one write a number, where
SiLU and product apart read and write the halfway result once more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import as_rows, require, strange
from kernels.triton.variants import Variant

BLOCK = 1024
NUM_WARPS = 4
"""Eight numbers of each half a thread: 16 bytes at once in bfloat16."""


@triton.jit
def silu(x):
    """x · sigmoid(x) in float32. Far below zero e^-x is infinite and the quotient 0."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _silu_mul(x_ptr, out_ptr, x_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate_ptr = x_ptr + row * x_stride + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, (silu(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)


def refusal(gate_up: torch.Tensor) -> str:
    """Why this tensor cannot be taken; empty if it can."""
    if gate_up.shape[-1] % 2:
        return f"rows of {gate_up.shape[-1]} numbers are no two halves"
    return strange(gate_up=gate_up)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `kernels.reference.silu_mul`. Raises ValueError for what it cannot take (`refusal`)."""
    require("silu_mul", refusal(gate_up), gate_up)
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        rows = as_rows(gate_up)
        rows = gate_up.reshape(-1, 2 * width) if rows is None else rows
        grid = (len(rows), triton.cdiv(width, BLOCK))
        _silu_mul[grid](rows, out, rows.stride(0), width, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return out


def variants() -> list[Variant]:
    """One shape of program serves all widths; a width that is no multiple of 16 is read number by number."""
    return [
        Variant(
            name=name,
            kernel=_silu_mul,
            signature={"x_ptr": f"*{name}", "out_ptr": f"*{name}", "x_stride": "i32", "width": "i32"},
            constexprs={"BLOCK": BLOCK},
            divisible_by_16=("x_ptr", "out_ptr", "x_stride", "width"),
            num_warps=NUM_WARPS,
            wants=("ldg.128", "stg.128"),
        )
        for name in ("bf16", "fp32")
    ]
