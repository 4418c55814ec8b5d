"""The choice of tokens in Triton, without a sort; see `kernels.reference.sample` for what.

One program a row. The tokens that top-k, top-p and min-p keep, and those up to the drawn one, are each a beginning of
the row's order of likelihood: everything nearer to the likeliest than some distance, and the first few at that
distance. So no order is ever made: every filter finds its end by halving (`ranking.py`), the nearest end counts, and
the random number is looked up in what is left by the same halving.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import FLOATS, require
from kernels.triton.ranking import first_past, keys_of, locate, logit_of, row_block, weights_within
from kernels.triton.variants import Variant

LARGEST_BLOCK = 2048
OPTIONS = tl.constexpr(5)
"""Numbers of a row's options, in the order of `sample`'s arguments."""
ALL: tl.constexpr = tl.constexpr(2147483647)
KEY_OF_INFINITY: tl.constexpr = tl.constexpr(0x7F800000)
KEY_OF_MINUS_INFINITY: tl.constexpr = tl.constexpr(-0x7F800001)


@triton.jit
def _sample(logits_ptr, options_ptr, ids_ptr, stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    options = options_ptr + row * OPTIONS
    temperature = tl.load(options)
    top, column = _likeliest(row_ptr, size, BLOCK)
    if temperature != 0:
        if (top > KEY_OF_MINUS_INFINITY) & (top < KEY_OF_INFINITY):
            column = _draw(row_ptr, size, top, options, BLOCK)
        else:
            column = _last_resort(row_ptr, size, top, options, BLOCK)
    tl.store(ids_ptr + row, column.to(tl.int64))


@triton.jit
def _likeliest(row_ptr, size, BLOCK: tl.constexpr):
    """The greatest key and the first column that has it."""
    best = tl.full([BLOCK], -2147483648, tl.int32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        column, logits = row_block(row_ptr, start, size, BLOCK)
        keys = tl.where(column < size, keys_of(logits), -2147483648)
        better = keys > best
        best = tl.where(better, keys, best)
        where = tl.where(better, column, where)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, where, size), 0)


@triton.jit
def _last_resort(row_ptr, size, top, options, BLOCK: tl.constexpr):
    """Logits that are infinite or no numbers have no probabilities: the last in the definition's order is taken."""
    last = size - 1
    filtered = (tl.load(options + 1) > 0) | (tl.load(options + 2) < 1) | (tl.load(options + 3) > 0)
    if filtered & (top == KEY_OF_INFINITY):
        finite = tl.full([BLOCK], -1, tl.int32)
        for start in range(0, size, BLOCK):
            column, logits = row_block(row_ptr, start, size, BLOCK)
            finite = tl.where((keys_of(logits) < KEY_OF_INFINITY) & (column < size), column, finite)
        found = tl.max(finite, 0)
        last = tl.where(found >= 0, found, last)
    return last


@triton.jit
def _draw(row_ptr, size, top, options, BLOCK: tl.constexpr):
    """The column on which the random number falls. There is a likeliest one, and the temperature is not 0."""
    largest = logit_of(top).to(tl.float64)
    temperature, top_k = tl.load(options), tl.load(options + 1)
    top_p, min_p, u = tl.load(options + 2), tl.load(options + 3), tl.load(options + 4)
    # A beginning of the order: all columns nearer than `distance` and the first `many` at it.
    distance, many = tl.full((), float("inf"), tl.float64), tl.full((), ALL, tl.int32)
    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    if filtered:
        # top_k, top_p and the draw each shorten it; after the draw its last column is the drawn one. One loop, so that
        # the search stands in the code once.
        for step in range(0, 3):
            if (step == 2) | ((step == 0) & (top_k > 0) & (top_k < size)) | ((step == 1) & (top_p < 1)):
                target = top_k
                if step == 2:
                    distance, many = _likely_enough(row_ptr, size, largest, temperature, min_p, distance, many, BLOCK)
                if step > 0:
                    share = tl.where(step == 1, top_p, u)
                    target = share * weights_within(row_ptr, size, largest, temperature, distance, many, BLOCK)
                end, enough = locate(row_ptr, size, top, temperature, target, step == 0, step == 2, BLOCK)
                distance, many = _shorter(distance, many, end, enough)
        target = many.to(tl.float64) - 1
    else:
        target = u * weights_within(row_ptr, size, largest, temperature, distance, many, BLOCK)
    return first_past(row_ptr, size, largest, temperature, target, distance, filtered, BLOCK)


@triton.jit
def _likely_enough(row_ptr, size, largest, temperature, min_p, distance, many, BLOCK: tl.constexpr):
    """The beginning that is left when ``min_p`` has dropped all that are less likely than it times the likeliest, whose
    weight is 1. The first always stays."""
    if min_p > 0:
        far = tl.full([BLOCK], -1.0, tl.float64)
        for start in range(0, size, BLOCK):
            _, logits = row_block(row_ptr, start, size, BLOCK)
            distances = (largest - logits.to(tl.float64)) / temperature
            far = tl.where(tl.exp(-distances) >= min_p, tl.maximum(far, distances), far)
        found = tl.max(far, 0)
        distance, many = _shorter(distance, many, tl.maximum(found, 0.0), tl.where(found < 0, 1, ALL))
    return distance, many


@triton.jit
def _shorter(distance, many, other_distance, other_many):
    """Of two beginnings the one that ends first."""
    first = (distance < other_distance) | ((distance == other_distance) & (many <= other_many))
    return tl.where(first, distance, other_distance), tl.where(first, many, other_many)


def refusal(logits: torch.Tensor) -> str:
    """Why it cannot choose from such logits; empty if it can."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        return f"logits of shape {list(logits.shape)} are not rows of a vocabulary"
    if logits.dtype not in FLOATS:
        return f"logits are {logits.dtype}, and it takes float16, bfloat16 and float32"
    if logits.stride(1) != 1 and logits.shape[1] > 1:
        return "the logits of a row do not lie side by side"
    return ""


def sample(
    logits: torch.Tensor,
    temperature: list[float] | torch.Tensor,
    top_k: list[int] | torch.Tensor,
    top_p: list[float] | torch.Tensor,
    min_p: list[float] | torch.Tensor,
    u: list[float] | torch.Tensor,
) -> torch.Tensor:
    """As `kernels.reference.sample`; sums of weights are float64. Waits for nothing on the device.

    Raises ValueError for logits (`refusal`) or options it cannot take.
    """
    require("sample", refusal(logits), logits)
    options = _packed(len(logits), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, u=u)
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    if len(logits):
        chosen = config(logits.shape[1])
        _sample[(len(logits),)](
            logits, options.to(logits.device, non_blocking=True), ids, logits.stride(0), logits.shape[1], **chosen
        )
    return ids


def _packed(rows: int, **options: list[float] | list[int] | torch.Tensor) -> torch.Tensor:
    """The options of each row side by side: float64 ``[rows, 5]``, in one piece to the device. A whole number below
    2^53 stays itself."""
    columns = []
    for name, numbers in options.items():
        column = torch.as_tensor(numbers, dtype=torch.float64)
        if column.shape != (rows,):
            raise ValueError(f"sample in Triton: {column.numel()} numbers as {name} for {rows} rows of logits")
        columns.append(column)
    return torch.stack(columns, 1)


def config(vocab_size: int) -> dict[str, int]:
    """The columns that a program looks at together: four a thread, one read of 16 bytes in float32. With eight, sums
    and weights in float64 do not fit into the registers of so many threads."""
    block = min(LARGEST_BLOCK, triton.next_power_of_2(vocab_size))
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 128))}


def variants() -> list[Variant]:
    """Vocabularies of more than a block, as all models have."""
    chosen = config(LARGEST_BLOCK)
    return [
        Variant(
            name="fp32",
            kernel=_sample,
            signature={
                "logits_ptr": "*fp32", "options_ptr": "*fp64", "ids_ptr": "*i64", "stride": "i32", "size": "i32",
            },
            constexprs={"BLOCK": chosen["BLOCK"]},
            divisible_by_16=("logits_ptr", "options_ptr", "ids_ptr", "stride", "size"),
            num_warps=chosen["num_warps"],
            wants=("ldg.128",),
        )
    ]  # fmt: skip
