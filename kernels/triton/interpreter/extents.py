"""Where the tensors of a launch lie, element by element, so that an address can be asked whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor


class Extent(NamedTuple):
    """Where an argument's elements lie: address of the first, bytes of one, and (size, stride) of each dimension that
    has more than one place, the widest stride first; strides in elements."""

    argument: str
    start: int
    itemsize: int
    dims: tuple[tuple[int, int], ...]
    numel: int
    shape: tuple[int, ...]

    def element(self, addresses: np.ndarray) -> np.ndarray:
        """int64: which element from the first an address lies in; it need not exist."""
        return (addresses - np.uint64(self.start)).view(np.int64) // self.itemsize

    def holds(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """bool per address: whether its ``width`` bytes are the argument's own."""
        inside = self._exist(self.element(addresses))
        if width > self.itemsize:
            inside &= self._exist(self.element(addresses + np.uint64(width - 1)))
        return inside

    def _exist(self, element: np.ndarray) -> np.ndarray:
        span = 1 + sum((size - 1) * stride for size, stride in self.dims)
        inside = (element >= 0) & (element < span) & (self.numel > 0)
        if span == self.numel or not self._nested():
            return inside
        rest = element
        for size, stride in self.dims:
            place = rest // stride
            inside &= place < size
            rest = rest - place * stride
        return inside & (rest == 0)

    def _nested(self) -> bool:
        """Whether each stride is wider than all that is inside it, so that an element has one place only."""
        span = 1
        for size, stride in reversed(self.dims):
            if stride < span:
                return False
            span += (size - 1) * stride
        return True


class Launch:
    """The tensors of the kernel that runs now, by argument. ``check`` off: nothing is checked or poisoned."""

    def __init__(self, kernel: str, arguments: list[tuple[str, Any]], check: bool) -> None:
        self.kernel, self.check = kernel, check
        tensors = [found for name, value in arguments for found in _tensors(name, value)] if check else []
        self.extents = [_extent(name, tensor) for name, tensor in tensors]
        # The tensors are kept alive here, so an id stays theirs.
        self._by_id = {id(tensor): (tensor, extent) for (_, tensor), extent in zip(tensors, self.extents, strict=True)}

    def extent(self, tensor: Any) -> Extent | None:
        return self._by_id.get(id(tensor), (None, None))[1]


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, TensorDescriptor):
        yield from _tensors(f"{name}.base", value.base)
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from _tensors(f"{name}[{i}]", part)
    elif hasattr(value, "data_ptr"):
        yield name, value


def _extent(name: str, value: Any) -> Extent:
    tensor = interpreter._unwrap_tensor(value)
    shape = tuple(tensor.shape)
    places = [(size, stride) for size, stride in zip(shape, tensor.stride(), strict=True) if size > 1 and stride > 0]
    dims = tuple(sorted(places, key=lambda place: -place[1]))
    return Extent(name, tensor.data_ptr(), tensor.element_size(), dims, tensor.numel(), shape)
