"""What interpreted kernels move between memory and chip, counted launch by launch.

    with counting() as launches:
        kernels.softmax(x, maker="triton")
    launches[0].read, launches[0].written

A byte that a launch reads twice counts once in ``read``: on a GPU the second time it comes from a cache, if what lies
between was small. ``asked`` counts it twice; what a kernel asks for again and again costs time in the L2 cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from kernels.triton.interpreter import interpreting


class Moved(NamedTuple):
    """Bytes of one launch."""

    kernel: str
    read: int
    written: int
    asked: int
    """All that was read, repetitions and all."""


@contextmanager
def counting() -> Iterator[list[Moved]]:
    """Within it every launch adds its `Moved` to the list. Raises RuntimeError where kernels are compiled; one at a
    time, and opened inside `faithful` if both are wanted."""
    if not interpreting():
        raise RuntimeError("kernels are compiled in this process; start Python with TRITON_INTERPRET=1 to count")
    launches: list[Moved] = []
    # By the width of the numbers that lie there: the addresses that a launch has touched so far.
    reads: dict[int, list[np.ndarray]] = defaultdict(list)
    writes: dict[int, list[np.ndarray]] = defaultdict(list)
    call, load, store = (
        GridExecutor.__call__,
        InterpreterBuilder.create_masked_load,
        InterpreterBuilder.create_masked_store,
    )

    def counted_call(self: Any, *args: Any, **kwargs: Any) -> None:
        reads.clear(), writes.clear()
        call(self, *args, **kwargs)
        asked = sum(width * len(some) for width, found in reads.items() for some in found)
        launches.append(Moved(self.fn.__name__, _distinct(reads), _distinct(writes), asked))

    def counted_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _note(reads, ptrs, mask)
        return load(self, ptrs, mask, *rest, **named)

    def counted_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _note(writes, ptrs, mask)
        return store(self, ptrs, value, mask, *rest, **named)

    GridExecutor.__call__ = counted_call
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = counted_load, counted_store
    try:
        yield launches
    finally:
        GridExecutor.__call__ = call
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store


def _note(touched: dict[int, list[np.ndarray]], ptrs: Any, mask: Any) -> None:
    active = np.broadcast_to(mask.data.astype(bool), ptrs.data.shape)
    touched[max(1, ptrs.get_element_ty().primitive_bitwidth // 8)].append(ptrs.data[active])


def _distinct(touched: dict[int, list[np.ndarray]]) -> int:
    """Bytes. Numbers of different widths lie in different tensors."""
    return sum(width * np.unique(np.concatenate(found)).size for width, found in touched.items())
