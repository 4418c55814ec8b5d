"""Softmax in Triton as a ladder; see `kernels.reference.softmax` for what. Each rung is a real kernel.

========== =============================== ====================================================================
rung       memory traffic of n numbers     how
========== =============================== ====================================================================
`naive`    3 n read, 2 n written           three kernels, as separate operations are: the rows' largest; e^(x −
                                           largest) and its sum; the quotient. What lies between goes through memory
`fused`    1 n read, 1 n written           one kernel, a row stays in registers: only as long as they hold it
`online`   2 n read, 1 n written           one kernel for rows of any length: largest and sum in the same pass
                                           (Milakov and Gimelshein 2018), since a sum of e^(x − m) is brought to a
                                           larger m by the factor e^(m − larger m)
========== =============================== ====================================================================

All do sums in float32 and give zeros for a row of −inf alone, where nothing may be chosen. What is not a number makes
its whole row so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.triton.launch import as_rows, require, strange
from kernels.triton.variants import Variant

LONGEST_FUSED = 16384
"""Numbers of a row that registers hold without being spilled."""
BLOCK = 4096
"""Columns that a program looks at together where it walks along a row."""


@triton.jit
def _largest(x_ptr, largest_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, x)
    tl.store(largest_ptr + row, tl.max(largest, 0))


@triton.jit
def _numerators(x_ptr, largest_ptr, numerators_ptr, sums_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = _or_zero(tl.load(largest_ptr + row))
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
        numerator = tl.exp(x - largest)
        total += numerator
        tl.store(numerators_ptr + row * columns + column, numerator, mask=inside)
    tl.store(sums_ptr + row, tl.sum(total, 0))


@triton.jit
def _quotients(numerators_ptr, sums_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    factor = _reciprocal(tl.load(sums_ptr + row))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        at = row * columns + column
        numerator = tl.load(numerators_ptr + at, mask=column < columns, other=0.0)
        tl.store(out_ptr + at, (numerator * factor).to(out_ptr.dtype.element_ty), mask=column < columns)


@triton.jit
def _fused(x_ptr, out_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    numerator = tl.exp(x - _or_zero(tl.max(x, 0)))
    probability = numerator * _reciprocal(tl.sum(numerator, 0))
    tl.store(out_ptr + row * columns + column, probability.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _online(x_ptr, out_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    # Every lane keeps the largest and the sum of what it has seen; lanes are brought together once, at the end.
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, x)
        base = _or_zero(larger)
        total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = larger
    whole = _or_zero(tl.max(largest, 0))
    factor = _reciprocal(tl.sum(total * tl.exp(largest - whole), 0))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
        probability = tl.exp(x - whole) * factor
        tl.store(out_ptr + row * columns + column, probability.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _or_zero(largest):
    """−inf − −inf is no number; from 0 every −inf is infinitely far."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def _reciprocal(total):
    """Of a sum. Where nothing was added, numerators are 0 and shall stay so."""
    return 1.0 / tl.where(total == 0.0, 1.0, total)


def refusal(x: torch.Tensor) -> str:
    """Why this tensor cannot be taken; empty if it can."""
    return strange(x=x)


def naive(x: torch.Tensor) -> torch.Tensor:
    """Three kernels with numerators and sums in memory between them."""
    rows, out = _opened(x)
    if out.numel():
        count, columns = rows.shape
        largest, sums = (torch.empty(count, dtype=torch.float32, device=x.device) for _ in range(2))
        numerators = torch.empty((count, columns), dtype=torch.float32, device=x.device)
        known = _walking(columns)
        _largest[(count,)](rows, largest, rows.stride(0), columns, **known)
        _numerators[(count,)](rows, largest, numerators, sums, rows.stride(0), columns, **known)
        _quotients[(count,)](numerators, sums, out, columns, **known)
    return out


def fused(x: torch.Tensor) -> torch.Tensor:
    """One kernel, one row a program. Raises ValueError for rows over `LONGEST_FUSED`."""
    rows, out = _opened(x)
    if rows.shape[1] > LONGEST_FUSED:
        raise ValueError(f"softmax in registers: rows of {rows.shape[1]}, and they hold {LONGEST_FUSED}; use online")
    if out.numel():
        count, columns = rows.shape
        _fused[(count,)](rows, out, rows.stride(0), columns, **_whole(columns))
    return out


def online(x: torch.Tensor) -> torch.Tensor:
    """One kernel for rows of any length."""
    rows, out = _opened(x)
    if out.numel():
        count, columns = rows.shape
        _online[(count,)](rows, out, rows.stride(0), columns, **_walking(columns))
    return out


LADDER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"naive": naive, "fused": fused, "online": online}


def softmax(x: torch.Tensor) -> torch.Tensor:
    """As `kernels.reference.softmax`: fused if the row fits. Raises ValueError for what it cannot take (`refusal`)."""
    return (fused if x.shape[-1] <= LONGEST_FUSED else online)(x)


def _opened(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x as rows, and an empty result of its shape."""
    require("softmax", refusal(x), x)
    rows = as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return x.reshape(-1, x.shape[-1] or 1) if rows is None else rows, out


def _whole(columns: int) -> dict[str, int]:
    """A block that holds a row, and warps for sixteen numbers a thread or thirty-two."""
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}


def _walking(columns: int) -> dict[str, int]:
    return _whole(min(columns, BLOCK))


def variants() -> list[Variant]:
    """Every rung; the fused one at its lengths, of which the last shows that nothing is spilled."""
    x, out = {"x_ptr": "*bf16", "x_stride": "i32", "columns": "i32"}, {"out_ptr": "*bf16"}
    largest, sums, numerators = {"largest_ptr": "*fp32"}, {"sums_ptr": "*fp32"}, {"numerators_ptr": "*fp32"}
    reads, both = ("ldg.128",), ("ldg.128", "stg.128")
    listed = [
        ("naive-largest", _largest, x | largest, _walking(BLOCK), reads),
        ("naive-numerators", _numerators, x | largest | numerators | sums, _walking(BLOCK), both),
        ("naive-quotients", _quotients, numerators | sums | out | {"columns": "i32"}, _walking(BLOCK), both),
        *((f"fused-{n}", _fused, x | out, _whole(n), both) for n in (1024, 4096, LONGEST_FUSED)),
        ("online", _online, x | out, _walking(BLOCK), both),
    ]
    return [
        Variant(
            name=f"bf16-{name}",
            kernel=kernel,
            signature=signature,
            constexprs={"BLOCK": chosen["BLOCK"]},
            divisible_by_16=tuple(signature),
            num_warps=chosen["num_warps"],
            wants=wants,
        )
        for name, kernel, signature, chosen, wants in listed
    ]
