"""What PyTorch's operations move between memory and processor, counted call by call: each reads its inputs once and
writes its results once, as `fusion` counts kernels. Views move nothing.

    with counting() as calls:
        x.square().mean(-1)
    [(call.op, call.read, call.written) for call in calls]

What one operation does inside, a temporary copy say, is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NOTHING = ("empty", "detach", "lift_fresh", "new_empty", "_local_scalar_dense")
"""Operations that move no numbers, or one."""


class Moved(NamedTuple):
    """Bytes of one call."""

    op: str
    read: int
    written: int


@contextmanager
def counting() -> Iterator[list[Moved]]:
    """Within it every operation of this thread adds its `Moved` to the list."""
    calls: list[Moved] = []
    with _Count(calls):
        yield calls


class _Count(TorchDispatchMode):
    def __init__(self, calls: list[Moved]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not _is_view(func) and not name.startswith(_NOTHING):
            self.calls.append(Moved(name, *_moved(name, args, kwargs or {}, result)))
        return result


def _is_view(func: Any) -> bool:
    """Whether the result shares an input's memory and nothing is written."""
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def _moved(name: str, args: Any, kwargs: Any, result: Any) -> tuple[int, int]:
    written, read = _bytes(result), _bytes([args, kwargs])
    if name == "copy_":
        return _bytes(args[1:]), written  # what was there before is not read
    if name == "index":
        return _bytes(args[1:]) + written, written  # of the table only the rows that are asked for
    if name in ("index_put_", "_index_put_impl_", "index_copy_"):
        values = args[2] if name != "index_copy_" else args[3]
        return _bytes(args[1:]), _bytes(values)
    return read, written


def _bytes(things: Any) -> int:
    """Of all tensors among them; what is broadcast counts as it lies in memory."""
    return sum(one.numel() * one.element_size() for one in tree_leaves(things) if isinstance(one, torch.Tensor))
