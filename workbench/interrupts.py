"""Ctrl-C where the engine can bear it: while the model computes, or between two steps, never in the bookkeeping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class SafeInterrupts:
    """While entered, an interrupt is raised at once if ``may_raise()`` says so, else at the next `check` or the exit.

    Python raises KeyboardInterrupt between any two instructions. In the middle of taking blocks that would leave a
    table that nobody owns. Does nothing outside the main thread or where somebody else handles SIGINT.
    """

    def __init__(self, may_raise: Callable[[], bool]) -> None:
        self._may_raise = may_raise
        self._pending = False
        self._installed = False

    def __enter__(self) -> SafeInterrupts:
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises the interrupt that came since the last check, if one did."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._may_raise():
            raise KeyboardInterrupt
        self._pending = True
