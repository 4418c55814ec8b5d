"""Interpreted tensors as numpy arrays and back, for whoever stands in for a device function."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def as_array(value: Any) -> np.ndarray:
    """Of an interpreted tensor, scalar or constant, as it lies there."""
    return np.asarray(value.handle.data if hasattr(value, "handle") else getattr(value, "value", value))


def as_tensor(numbers: np.ndarray) -> Any:
    """An interpreted float32 tensor."""
    data = np.ascontiguousarray(numbers, dtype=np.float32)
    return tl.tensor(TensorHandle(data, tl.float32), tl.block_type(tl.float32, list(data.shape)))


def as_scalar(number: int) -> Any:
    """An interpreted int32."""
    return tl.tensor(TensorHandle(np.array([number], dtype=np.int32), tl.int32), tl.int32)
