"""A matrix product with its epilogue in Triton; see `kernels.reference.matmul` and `kernels.reference.linear` for what.

A program computes one tile of the result in registers. Bias and activation are applied to it there, in float32, before
it is written: as operations of their own each would read the result and write it again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.reference.matmul import ACTIVATIONS
from kernels.reference.weights import Weight
from kernels.triton.activation import silu
from kernels.triton.launch import FLOATS, require
from kernels.triton.variants import ARCHS, Variant


@triton.jit
def _matmul(
    a_ptr, b_ptr, bias_ptr, out_ptr, m, n, k, a_row, a_column, b_row, b_column,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, WHOLE_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Programs that run at the same time take tiles of GROUP rows of tiles, column by column, so that they share what
    # they read of a and b while it is in the L2 cache.
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    program = tl.program_id(0)
    first = program // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = program % (GROUP * tiles_n)
    rows = (first + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = within // height * BLOCK_N + tl.arange(0, BLOCK_N)
    depth, step = tl.arange(0, BLOCK_K), tl.full((), BLOCK_K, tl.int64)
    row_inside, column_inside = rows[:, None] < m, columns[None, :] < n
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * a_row + depth.to(tl.int64)[None, :] * a_column
    b_ptrs = b_ptr + depth.to(tl.int64)[:, None] * b_row + columns.to(tl.int64)[None, :] * b_column
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        if WHOLE_K:
            a = tl.load(a_ptrs, mask=row_inside, other=0.0)
            b = tl.load(b_ptrs, mask=column_inside, other=0.0)
        else:
            left = depth < k - start
            a = tl.load(a_ptrs, mask=row_inside & left[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=column_inside & left[:, None], other=0.0)
        total = tl.dot(a, b.to(a.dtype), total, input_precision=PRECISION)
        a_ptrs += step * a_column
        b_ptrs += step * b_row
    if bias_ptr is not None:
        total += tl.load(bias_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    total = _activated(total, ACTIVATION)
    at = out_ptr + rows.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=row_inside & column_inside)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)  # not maximum: what is not a number must stay so
    elif ACTIVATION == "silu":
        x = silu(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return x


class Config(NamedTuple):
    """The tile of a program, and how it is computed."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP: int
    num_warps: int
    num_stages: int


def config(m: int, dtype: torch.dtype, capability: int) -> Config:
    """By rows, so that few rows need not pay for a tall tile; ``capability``: 80, 90 or 100 and what lies between.

    Tiles of 64 rows and more use wgmma on Hopper; with fewer rows weights are read for each row of tiles only once, and
    reading them is all that counts.
    """
    if dtype == torch.float32:
        return Config(64, 64, 32, 8, 4, 3) if m > 16 else Config(16, 64, 32, 1, 4, 3)
    if m <= 16:
        return Config(16, 64, 128, 1, 4, 4)
    if m <= 64:
        return Config(64, 64, 64, 1, 4, 4)
    if capability >= 90:
        return Config(128, 256, 64, 8, 8, 3)
    return Config(128, 128, 64, 8, 8, 3)


def refusal(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> str:  # fmt: skip
    """Why these tensors cannot be taken; empty if they can. Matrices may lie in any order."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or (bias is not None and bias.shape != b.shape[1:]):
        shapes = [list(one.shape) for one in (a, b) if one is not None]
        return f"matrices {shapes[0]} and {shapes[1]} and the bias do not fit together"
    if activation not in ACTIVATIONS:
        return f"activation {activation!r}; there are {', '.join(ACTIVATIONS)}"
    for name, tensor in (("a", a), ("b", b), ("bias", bias)):
        if tensor is not None and tensor.dtype not in FLOATS:
            return f"{name} is {tensor.dtype}, and it takes float16, bfloat16 and float32"
    return "" if bias is None or bias.is_contiguous() else "the numbers of the bias do not lie side by side"


def matmul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """As `kernels.reference.matmul`. float32 is multiplied as float32, not as TF32.

    Raises ValueError for what it cannot take (`refusal`).
    """
    require("matmul", refusal(a, b, bias, activation), a, b, bias)
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if not out.numel():
        return out
    chosen = config(m, a.dtype, capability(a.device))
    grid = (triton.cdiv(m, chosen.BLOCK_M) * triton.cdiv(n, chosen.BLOCK_N),)
    _matmul[grid](
        a, b, bias, out, m, n, k, *a.stride(), *b.stride(), ACTIVATION=activation,
        PRECISION="ieee" if a.dtype == torch.float32 else "tf32", WHOLE_K=k % chosen.BLOCK_K == 0, **chosen._asdict(),
    )  # fmt: skip
    return out


def linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> torch.Tensor:
    """As `kernels.reference.linear` for weights of floats; raises ValueError for others."""
    require("linear", f"weights of {weight.format} are not read by it yet" if weight.whole_numbers else "")
    return matmul(x, weight.data.T, bias)


def capability(device: torch.device) -> int:
    """Of the GPU, as in sm_90; where kernels are interpreted, the least."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def variants() -> list[Variant]:
    """bfloat16 by a weight ``[n, k]`` with bias and SiLU, for few, some and many rows, and float32."""
    kinds = [("bf16", torch.bfloat16, 16), ("bf16", torch.bfloat16, 64), ("bf16", torch.bfloat16, 4096)]
    kinds += [("fp32", torch.float32, 4096)]
    chosen_on: dict[tuple[str, int, Config], list[str]] = {}
    for name, dtype, rows in kinds:
        for arch in ARCHS:
            chosen_on.setdefault((name, rows, config(rows, dtype, int(arch[3:]))), []).append(arch)
    return [_variant(*kind, tuple(archs)) for kind, archs in chosen_on.items()]


def _variant(dtype: str, rows: int, chosen: Config, archs: tuple[str, ...]) -> Variant:
    tile = chosen._asdict()
    warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
    wants = ["cp.async", "ldg.128"] + (["mma"] if dtype == "bf16" else [])
    if dtype == "bf16" and chosen.BLOCK_M >= 64:
        wants += [want for want, arch in (("wgmma", "sm_90"), ("tcgen05", "sm_100")) if arch in archs]
    pointers = ("a_ptr", "b_ptr", "bias_ptr", "out_ptr")
    known = {"a_column": 1, "b_row": 1, "ACTIVATION": "silu", "WHOLE_K": True}
    return Variant(
        name=f"{dtype}-{rows}-rows-{chosen.BLOCK_M}x{chosen.BLOCK_N}x{chosen.BLOCK_K}",
        kernel=_matmul,
        signature=dict.fromkeys(pointers, f"*{dtype}") | dict.fromkeys(("m", "n", "k", "a_row", "b_column"), "i32"),
        constexprs={**known, "PRECISION": "tf32" if dtype == "bf16" else "ieee", **tile},
        divisible_by_16=(*pointers, "n", "k", "a_row", "b_column"),
        num_warps=warps,
        num_stages=stages,
        archs=archs,
        wants=tuple(wants),
    )
