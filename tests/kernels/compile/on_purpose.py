"""Kernels for the tests of `kernels.inspect`: one sound, the others each with a fault it must find.

This file is given to it by its path, so it is compiled in that process and never imported by pytest.
"""

import triton
import triton.language as tl

from kernels.triton.variants import Variant


@triton.jit
def _scaled(x):
    return x * 0.5


@triton.jit
def _matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c[M, N] = a[M, K] · b[K, N] / 2, all dense."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :], mask=(rows < M)[:, None], other=0.0)
        b = tl.load(b_ptr + (start + inner)[:, None] * N + columns[None, :], mask=(columns < N)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], _scaled(total).to(tl.bfloat16), mask=inside)


@triton.jit
def _descriptor_sum(x, out_ptr, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[COLUMNS] = the sum over n rows of a matrix behind a descriptor."""
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, n, ROWS):
        total += tl.sum(x.load([start, 0]).to(tl.float32), 0)
    tl.store(out_ptr + tl.arange(0, COLUMNS), total)


@triton.jit
def _does_not_compile(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.zeros((BLOCK + 1,), tl.float32))


def variants() -> list[Variant]:
    pointers = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16"}
    sizes = {"M": "i32", "N": "i32", "K": "i32"}

    def matmul(name, bm, bn, bk, **more):
        values = {"BM": bm, "BN": bn, "BK": bk}
        aligned = (*pointers, *sizes) if more.pop("aligned", True) else ()
        signature = {**pointers, **sizes}
        return Variant(
            name=name, kernel=_matmul, signature=signature, constexprs=values, divisible_by_16=aligned, **more
        )

    return [
        matmul("sound", 128, 128, 64, num_warps=8, wants=("mma", "wgmma", "tcgen05", "cp.async", "ldg.128")),
        # Sixteen rows are too few for a warpgroup: mma.sync instead of wgmma.
        matmul("no_wgmma", 16, 64, 64, archs=("sm_90",), wants=("wgmma",)),
        # 256 × 256 sums are 512 registers for each of 128 threads.
        matmul("spills", 256, 256, 32, num_stages=2, archs=("sm_90",)),
        matmul("too_much_shared", 128, 128, 128, num_warps=8, num_stages=6, archs=("sm_90",)),
        # Nothing is known of the addresses: element by element.
        matmul("unaligned", 64, 64, 32, archs=("sm_80",), wants=("ldg.128", "cp.async"), aligned=False),
        Variant(
            name="descriptor",
            kernel=_descriptor_sum,
            signature={"x": "tensordesc<bf16[64, 64]>", "out_ptr": "*fp32", "n": "i32"},
            constexprs={"ROWS": 64, "COLUMNS": 64},
            archs=("sm_90", "sm_100"),
            wants=("tma",),
        ),
        Variant(
            name="broken",
            kernel=_does_not_compile,
            signature={"x_ptr": "*fp32"},
            constexprs={"BLOCK": 128},
            archs=("sm_80",),
        ),
    ]
