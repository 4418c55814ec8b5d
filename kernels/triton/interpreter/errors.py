"""What the faithful interpreter raises. Importing this imports no Triton."""

from __future__ import annotations

import importlib.metadata

KNOWN_VERSIONS = "3.6 to 3.9"


class UnknownInterpreter(RuntimeError):
    """This Triton's interpreter is not built as those that `faithful` repairs. ``found``: what is not as expected."""

    def __init__(self, found: str) -> None:
        version = importlib.metadata.version("triton")
        super().__init__(f"Triton {version}: {found}. faithful() repairs Triton {KNOWN_VERSIONS}: install one of these")


class OutOfBounds(IndexError):
    """A kernel read or wrote outside the tensors it was given. ``kernel`` and ``argument`` are names (``argument`` is
    None where the pointer's origin is unknown); ``index`` is the element asked for, counted from the argument's first
    in units of its elements (None with ``argument``); ``program`` is the place in the grid.
    """

    def __init__(
        self, message: str, kernel: str, argument: str | None, index: int | None, program: tuple[int, ...]
    ) -> None:
        super().__init__(message)
        self.kernel, self.argument, self.index, self.program = kernel, argument, index, program
