"""A row of logits in order of likelihood, without sorting it: where a beginning of that order ends, and what it weighs.

A column's *distance* is ``(largest − logit) / temperature`` in float64, its weight e^−distance. The order goes by
distance, then by column. Logits that differ may be equally far, when only rounding made them so; hence searches go by
the logits' keys, which are cheap to compare, and ends are told by distance.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST: tl.constexpr = tl.constexpr(-2147483648)
GREATEST: tl.constexpr = tl.constexpr(2147483647)


@triton.jit
def row_block(row_ptr, start, size, BLOCK: tl.constexpr):
    """Columns from ``start`` on and their logits in float32; −inf beyond the vocabulary."""
    column = start + tl.arange(0, BLOCK)
    return column, tl.load(row_ptr + column, mask=column < size, other=float("-inf")).to(tl.float32)


@triton.jit
def keys_of(logits):
    """Whole numbers of 32 bits in the order of the logits: −0 and 0 alike, and NaN above all."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    # Floats below zero grow with falling bits.
    return tl.where(logits == logits, bits ^ ((bits >> 31) & GREATEST), GREATEST)


@triton.jit
def logit_of(key):
    """The logit that has this key."""
    return (key ^ ((key >> 31) & GREATEST)).to(tl.float32, bitcast=True)


@triton.jit
def locate(row_ptr, size, top, temperature, target, count, more, BLOCK: tl.constexpr):
    """The shortest beginning of the order that weighs at least ``target`` (``more``: more than that); with ``count``,
    that has so many columns. top: the greatest key.

    Returns (distance, many): the beginning is all columns nearer than the distance and the first ``many`` at it. If
    rounding leaves the target beyond the last column that weighs anything, it ends there.

    Keys from ``low`` to below ``high`` are halved. The range shrinks to keys that occur, and at least by half, so there
    are at most 32 rounds, whatever the logits are; blocks without a key in the range are passed over.
    """
    largest = logit_of(top).to(tl.float64)
    low, high = tl.full((), LEAST, tl.int32), top + 1
    above = tl.full((), 0.0, tl.float64)  # what the keys from high on weigh
    while high > low + 1:
        middle = ((low.to(tl.int64) + high.to(tl.int64)) >> 1).to(tl.int32)
        weighed = tl.zeros([BLOCK], tl.float64)
        nearest = tl.full([BLOCK], GREATEST, tl.int32)  # the least key that occurs from middle on
        below = tl.full([BLOCK], LEAST, tl.int32)  # the greatest below middle
        for start in range(0, size, BLOCK):
            _, logits = row_block(row_ptr, start, size, BLOCK)
            keys = keys_of(logits)
            within = (keys >= low) & (keys < high)
            if tl.max(within.to(tl.int32), 0) > 0:
                weights = _measured(logits, largest, temperature, count)
                within = within & (weights > 0)
                upper = within & (keys >= middle)
                weighed += tl.where(upper, weights, 0.0)
                nearest = tl.minimum(nearest, tl.where(upper, keys, GREATEST))
                below = tl.maximum(below, tl.where(within & (keys < middle), keys, LEAST))
        reached = above + tl.sum(weighed, 0)
        next_below = tl.max(below, 0)
        if _passes(reached, target, more) | (next_below == LEAST):
            low = tl.min(nearest, 0)
        else:
            high = next_below + 1
            above = reached
    # The key is found. All that are as far as it stand side by side in the order, by their columns.
    distance = (largest - logit_of(low).to(tl.float64)) / temperature
    nearer = tl.zeros([BLOCK], tl.float64)
    tied = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        column, logits = row_block(row_ptr, start, size, BLOCK)
        distances = (largest - logits.to(tl.float64)) / temperature
        nearer += tl.where(distances < distance, _measured(logits, largest, temperature, count), 0.0)
        tied += ((distances == distance) & (column < size)).to(tl.int32)
    missing = target - tl.sum(nearer, 0)
    missing = missing / tl.where(count, 1.0, tl.exp(-distance))
    # Limited before it becomes a whole number of 32 bits.
    missing = tl.minimum(tl.maximum(missing, 0.0), size * 1.0)
    many = tl.where(more, tl.floor(missing) + 1, tl.ceil(missing)).to(tl.int32)
    return distance, tl.minimum(tl.maximum(many, 1), tl.sum(tied, 0))


@triton.jit
def _measured(logits, largest, temperature, count):
    distances = (largest - logits.to(tl.float64)) / temperature
    return tl.where(count, 1.0, tl.exp(-distances))


@triton.jit
def _passes(reached, target, more):
    # A target of 0 is not reached by nothing.
    return (reached > target) | ((reached == target) & (reached > 0) & (more == 0))


@triton.jit
def weights_within(row_ptr, size, largest, temperature, distance, many, BLOCK: tl.constexpr):
    """What the columns nearer than ``distance`` weigh, and the first ``many`` at it."""
    weighed = tl.zeros([BLOCK], tl.float64)
    tied = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        column, logits = row_block(row_ptr, start, size, BLOCK)
        distances = (largest - logits.to(tl.float64)) / temperature
        weighed += tl.where(distances < distance, tl.exp(-distances), 0.0)
        tied += ((distances == distance) & (column < size)).to(tl.int32)
    return tl.sum(weighed, 0) + tl.minimum(many, tl.sum(tied, 0)) * tl.exp(-distance)


@triton.jit
def first_past(row_ptr, size, largest, temperature, target, distance, ties, BLOCK: tl.constexpr):
    """The first column, in the order of the vocabulary, at which the running sum of weights passes ``target``; with
    ``ties`` each column at ``distance`` weighs 1 and the others nothing. If none passes, the last that weighs anything.
    """
    running, before = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    start, found = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    while (running <= target) & (start < size):
        _, weights = _weighed(row_ptr, start, size, largest, temperature, distance, ties, BLOCK)
        here = tl.sum(weights, 0)
        if here > 0:
            found = start
            before = running
        running += here
        start += BLOCK
    column, weights = _weighed(row_ptr, found, size, largest, temperature, distance, ties, BLOCK)
    past = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
    first = tl.min(tl.where(past, column, size), 0)
    last = tl.max(tl.where(weights > 0, column, 0), 0)
    return tl.where(first < size, first, last)


@triton.jit
def _weighed(row_ptr, start, size, largest, temperature, distance, ties, BLOCK: tl.constexpr):
    column, logits = row_block(row_ptr, start, size, BLOCK)
    distances = (largest - logits.to(tl.float64)) / temperature
    tied = ((distances == distance) & (column < size)).to(tl.float64)
    return column, tl.where(ties, tied, tl.exp(-distances))
