"""Reductions and scans that neither raise at NaN nor add up the bits of bf16.

`REDUCE` and `SCAN` hold what stands in for the methods of those names of Triton's `ReduceOps` and `ScanOps`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import triton.language as tl

from kernels.triton.interpreter.arithmetic import as_handle, values

_SMALLEST = (np.min, np.nanmin, np.argmin, np.nanargmin)


def min_max(self, input, val_reduce_op, idx_reduce_op=None):
    """NaN is passed over, as `max.f32` does on the GPU; where all are NaN the value is NaN and the index 0. (On a GPU
    the index then depends on the order of the tree; it lies inside too.) Of equal values the first counts."""
    input = input[0] if isinstance(input, tuple) else input
    smallest = val_reduce_op in _SMALLEST or idx_reduce_op in _SMALLEST
    numbers = values(input.handle)
    best = (np.fmin if smallest else np.fmax).reduce(numbers, axis=self.axis, keepdims=True)
    found = []
    if val_reduce_op:
        value = best if self.keep_dims else best.reshape(()) if self.axis is None else np.squeeze(best, axis=self.axis)
        found.append(self.to_tensor(as_handle(value, input.dtype).data, input.dtype))
    if idx_reduce_op:
        first = np.argmax(numbers == best, axis=self.axis, keepdims=self.keep_dims)
        found.append(self.to_tensor(first, tl.int32))
    return found[0] if len(found) == 1 else tuple(found)


def sum(self, input):  # noqa: A001
    total = np.sum(values(input.handle), axis=self.axis, keepdims=self.keep_dims)
    return self.to_tensor(as_handle(total, input.dtype).data, input.dtype)


def cumsum(self, input):
    return [self.to_tensor(as_handle(np.cumsum(values(input.handle), axis=self.axis), input.dtype).data, input.dtype)]


def cumprod(self, input):
    return [self.to_tensor(as_handle(np.cumprod(values(input.handle), axis=self.axis), input.dtype).data, input.dtype)]


REDUCE: dict[str, Callable] = {"min_max": min_max, "sum": sum}
SCAN: dict[str, Callable] = {"cumsum": cumsum, "cumprod": cumprod}
