"""Reductions and scans that neither raise at NaN nor add up the bits of bf16.

`REDUCE` and `SCAN` hold what stands in for the methods of those names of Triton's `ReduceOps` and `ScanOps`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from kernels.triton.interpreter.arithmetic import as_handle, values
from kernels.triton.interpreter.formats import KEPT_AS_BITS

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


def sum(self, input):
    """Halfs, bf16 and fp8 are added as a tree of neighbours whose every sum is rounded, as on a GPU (there the order is
    the layout's); wider types by numpy."""
    numbers = values(input.handle)
    if input.dtype.primitive_bitwidth > 16 or not input.dtype.is_floating():
        total = np.sum(numbers, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(as_handle(total, input.dtype).data, input.dtype)  # whole numbers wrap around
    shape = np.sum(numbers, axis=self.axis, keepdims=self.keep_dims).shape
    level = input.handle.data.reshape(-1) if self.axis is None else np.moveaxis(input.handle.data, self.axis, 0)
    while len(level) > 1:
        level = _combined(np.add, level[0::2], level[1::2], input.dtype)
    return self.to_tensor(level.reshape(shape), input.dtype)


def cumsum(self, input):
    return [_scanned(self, input, np.add)]


def cumprod(self, input):
    return [_scanned(self, input, np.multiply)]


def _scanned(self, input, op: np.ufunc):
    """Every prefix, each step rounded."""
    if input.dtype.name not in KEPT_AS_BITS:
        return self.to_tensor(
            op.accumulate(input.handle.data, axis=self.axis, dtype=input.handle.data.dtype), input.dtype
        )
    steps = np.moveaxis(input.handle.data.copy(), self.axis, 0)
    for i in range(1, len(steps)):
        steps[i] = _combined(op, steps[i - 1], steps[i], input.dtype)
    return self.to_tensor(np.moveaxis(steps, 0, self.axis), input.dtype)


def _combined(op: np.ufunc, left: np.ndarray, right: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """``left`` op ``right`` of raw data of one type, rounded to it."""
    return as_handle(op(values(TensorHandle(left, dtype)), values(TensorHandle(right, dtype))), dtype).data


REDUCE: dict[str, Callable] = {"min_max": min_max, "sum": sum}
SCAN: dict[str, Callable] = {"cumsum": cumsum, "cumprod": cumprod}
