"""What the C++ kernels share on Python's side: calling them, recording them, memory for their results.

A kernel's C function either does its work at once or, while a `Tape` is being recorded, notes it down: which function,
which addresses, which sizes. Replaying the tape is one native call for all of a step's operations. So what a recorded
step reads and writes must stay where it is: results lie in the tape's `Scratch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from kernels.cpu.build import cannot_run, library

TYPES = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
}
"""Letters of a C function's signature. ``p``, an address, takes a contiguous tensor, an address or None. ``s`` takes a
tensor whose rows may lie apart: the kernel is told how far."""
_here = threading.local()
"""``tape``: the one that this thread is recording."""


class Scratch:
    """Memory for the results of recorded operations, the same for every layer.

    An operation's result stays valid until the next operation of the same name and width. ``rows``: the most that any
    recorded step has.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows + -rows % 3
        self._kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor whose first dimension is at most ``rows``. Raises ValueError beyond."""
        if shape[0] > self.rows:
            raise ValueError(f"{name}: {shape[0]} rows, and this scratch was made for {self.rows}")
        key = (name, shape[1:], dtype)
        if key not in self._kept:
            self._kept[key] = torch.empty((self.rows, *shape[1:]), dtype=dtype)
        return self._kept[key][: shape[0]]


class Tape:
    """Operations recorded once. It holds addresses, so whoever records keeps alive what they belong to."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.handle: int = function("tape_new", "", "p")()
        weakref.finalize(self, function("tape_free", "p"), self.handle)
        self.held: list[object] = []
        """What recorded operations read and nobody else may keep."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within it, in this thread, every kernel is noted down instead of carried out."""
        if recorded() is not None:
            raise RuntimeError("a tape is being recorded already")
        _here.tape = self
        try:
            yield
        finally:
            _here.tape = None

    def run(self) -> None:
        """Carries out all operations, one after the other."""
        function("tape_run", "pi")(self.handle, torch.get_num_threads())

    def __len__(self) -> int:
        return int(function("tape_length", "p", "i")(self.handle))


def recorded() -> Tape | None:
    """The tape that this thread is recording, if any."""
    return getattr(_here, "tape", None)


def call(name: str, signature: str, *arguments: Any) -> None:
    """Calls the kernel ``name(tape, threads, *arguments)``; `TYPES` has the letters of ``signature``.

    Raises ValueError for a tensor that does not lie in memory as its letter says: the kernel would read past it.
    """
    tape = recorded()
    addresses = [
        _address(name, letter, value) if isinstance(value, torch.Tensor) else value
        for letter, value in zip(signature, arguments, strict=True)
    ]
    function(name, "pi" + signature)(None if tape is None else tape.handle, torch.get_num_threads(), *addresses)


def _address(name: str, letter: str, tensor: torch.Tensor) -> int:
    if not (together(tensor) if letter == "p" else rows_together(tensor)):
        raise ValueError(
            f"{name} on a CPU: a tensor of shape {list(tensor.shape)} has strides {tensor.stride()}; its numbers must "
            f"lie side by side (.contiguous()), or use maker='reference'"
        )
    return tensor.data_ptr()


def together(*tensors: torch.Tensor | None) -> bool:
    """Whether each tensor's numbers lie side by side."""
    return all(one is None or one.is_contiguous() for one in tensors)


def rows_together(tensor: torch.Tensor) -> bool:
    """Whether the numbers of each row do."""
    return tensor.shape[-1] <= 1 or tensor.stride(-1) == 1


def suits(*activations: torch.Tensor) -> bool:
    """Whether kernels can take these here: float32 on a CPU, and a compiler was there."""
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in activations) and not cannot_run()


def hold(*things: object) -> None:
    """Keeps alive what a recorded operation reads, as long as its tape."""
    tape = recorded()
    if tape is not None:
        tape.held += things


def empty(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory for the result of the operation ``name``: its own, or the scratch of the tape that is being recorded."""
    tape = recorded()
    return torch.empty(shape, dtype=dtype) if tape is None else tape.scratch.empty(name, shape, dtype)


@functools.cache
def function(name: str, signature: str, result: str = "") -> Any:
    """The C function with its types set. Raises CannotBuild where there is no library."""
    found = getattr(library(), name)
    found.argtypes = [TYPES[letter] for letter in signature]
    found.restype = TYPES[result] if result else None
    return found
