"""The checker: what a masked load leaves undefined is made to hurt, and no address may leave its tensor.

Every pointer carries, in its type, the argument it was derived from (`owner`), so an address is held to the tensor it
belongs to and not only to some tensor of the launch. A view is held to its own elements, not to its storage. Pointers
made from integers or loaded from memory, and blocks of pointers chosen from two arguments, may point into any tensor of
the launch. What this cannot see: an address that is wrong but inside the right tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.triton.interpreter.errors import OutOfBounds
from kernels.triton.interpreter.extents import Extent, Launch
from kernels.triton.interpreter.formats import KEPT_AS_BITS

_LARGE_OFFSET = 2**30
_GARBAGE = 0xA5


_launch: Launch | None = None  # the interpreter runs one kernel at a time: patches.py holds a lock meanwhile


def begin(launch: Launch | None) -> None:
    """Says which kernel runs from now on; None: none."""
    global _launch
    _launch = launch


def tag(argument: Any, converted: Any) -> Any:
    """Writes the owner into the pointer that Triton made of a tensor."""
    extent = _launch.extent(argument) if _launch is not None else None
    if extent is not None:
        _own(converted.handle, extent)
    return converted


def _owner(handle: TensorHandle) -> Extent | None:
    return getattr(handle.dtype.scalar, "owner", None)


def _own(handle: TensorHandle, owner: Extent | None) -> None:
    """Gives a handle of pointers a type of its own, in which the owner stands."""
    pointer = handle.dtype.scalar
    handle.dtype = tl.pointer_type(pointer.element_ty, pointer.address_space, pointer.const)
    handle.dtype.owner = owner


def poison(dtype: tl.dtype) -> np.generic:
    """What an undefined lane holds: NaN, or for whole numbers bytes that make no sensible index."""
    wanted = interpreter._get_np_dtype(dtype)
    if wanted.kind == "f":
        return wanted.type(np.nan)
    if dtype.name in KEPT_AS_BITS:
        return wanted.type(KEPT_AS_BITS[dtype.name].nan)
    return wanted.type(True) if wanted.kind == "b" else np.full(wanted.itemsize, _GARBAGE, np.uint8).view(wanted)[0]


def check(builder: InterpreterBuilder, verb: str, ptrs: TensorHandle, mask: TensorHandle | np.ndarray | None) -> None:
    """Raises `OutOfBounds` unless every active lane's address is its argument's own."""
    if _launch is None or not _launch.check:
        return
    # Triton 3.6 hands over a bare array with descriptors.
    lanes = np.ones(1, bool) if mask is None else np.asarray(mask.data if isinstance(mask, TensorHandle) else mask)
    active = np.broadcast_to(lanes.astype(bool), ptrs.data.shape)
    addresses = ptrs.data[active]
    width = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    owner = _owner(ptrs)
    inside = np.zeros(addresses.shape, dtype=bool)
    for extent in [owner] if owner is not None else _launch.extents:
        inside |= extent.holds(addresses, width)
    if inside.all():
        return
    first = int(np.argmin(inside))
    lane = tuple(int(place) for place in np.argwhere(active)[first])
    count = f"{int((~inside).sum())} of {addresses.size} active lanes are"
    program = builder.grid_idx
    start = f"kernel {_launch.kernel}, program {program}, lane {lane}: {verb}"
    if owner is None:
        names = ", ".join(extent.argument for extent in _launch.extents) or "none"
        message = (
            f"{start} address {int(addresses[first]):#x}, outside all tensors of the launch ({names}); {count} outside"
        )
        raise OutOfBounds(message, _launch.kernel, None, None, program)
    index = int(owner.element(addresses)[first])
    hint = "mask the lane" if abs(index) < _LARGE_OFFSET else "an offset this large: .to(tl.int64) before multiplying"
    message = f"{start} element {index} of {owner.argument}, which has shape {owner.shape}; {count} outside ({hint})"
    raise OutOfBounds(message, _launch.kernel, owner.argument, index, program)


def create_masked_load(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def load(
        self, ptrs: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *policy, **named
    ) -> TensorHandle:
        check(self, "reads", ptrs, mask)
        if other is None and _launch is not None and _launch.check:
            dtype = ptrs.get_element_ty()
            other = TensorHandle(np.full(ptrs.data.shape, poison(dtype)), dtype)
        return original(self, ptrs, mask, other, *policy, **named)

    return load


def create_descriptor_load(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    """TMA pads with zeros (or NaN if told), which is no undefined lane: the padding is given as `other`. Triton's own
    cannot make NaN of bf16."""

    def load(self, desc, indices, *policy) -> TensorHandle:
        ptrs, mask = desc.materialize_pointers(indices)
        dtype = ptrs.get_element_ty()
        nan = getattr(desc, "padding", None) == interpreter._ir.PADDING_OPTION.PAD_NAN
        padding = poison(dtype) if nan else interpreter._get_np_dtype(dtype).type(0)
        other = TensorHandle(np.full(ptrs.data.shape, padding), dtype)
        loaded = self.create_masked_load(ptrs, mask, other, *policy, is_volatile=False)
        if getattr(desc, "round_f32_to_tf32", False) and dtype == tl.float32:
            return TensorHandle(interpreter._round_f32_to_tf32(loaded.data), dtype)
        return loaded

    return load


def create_masked_store(original: Callable[..., Any]) -> Callable[..., Any]:
    def store(self, ptrs: TensorHandle, value: TensorHandle, mask: TensorHandle, *policy, **named) -> Any:
        check(self, "writes", ptrs, mask)
        return original(self, ptrs, value, mask, *policy, **named)

    return store


def create_atomic_rmw(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def rmw(self, op, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, *rest) -> TensorHandle:
        check(self, "updates", ptr, mask)
        return original(self, op, ptr, val, mask, *rest)

    return rmw


def create_atomic_cas(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    def cas(self, ptr: TensorHandle, *rest) -> TensorHandle:
        check(self, "updates", ptr, None)
        return original(self, ptr, *rest)

    return cas


def create_bitcast(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    """A pointer to another type still points into the same argument."""

    def bitcast(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        owner, result = _owner(src), original(self, src, dst_type)
        if owner is not None and result.dtype.is_ptr():
            _own(result, owner)
        return result

    return bitcast


def create_select(original: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    """Lanes that point into two arguments belong to neither alone."""

    def select(self, cond: TensorHandle, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        result = original(self, cond, lhs, rhs)
        if _owner(lhs) is not _owner(rhs):
            _own(result, None)
        return result

    return select


# What wraps the method of that name of Triton's `InterpreterBuilder`.
WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    wrapper.__name__: wrapper
    for wrapper in (
        create_masked_load,
        create_descriptor_load,
        create_masked_store,
        create_atomic_rmw,
        create_atomic_cas,
        create_bitcast,
        create_select,
    )
}
