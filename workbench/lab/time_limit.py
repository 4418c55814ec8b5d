"""Runs a function that may never end, and gives up on it after a number of seconds."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(BaseException):
    """Not an Exception, so that an ``except Exception`` in the function that loops does not swallow it."""


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """``function()``, its result or its exception. Raises OutOfTime when it runs for more than ``seconds``.

    In the main thread a timer signal interrupts it, in a loop as well as in a system call. Elsewhere (and where there
    are no such signals) it runs in a thread of its own, which is told to stop and then left behind.
    """
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            return function()
    return _in_a_thread(seconds, function)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise OutOfTime

    begun = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            # The alarm rings once at most; if it does so right here, the outer block still cleans up.
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        # None: the handler was not set from Python and cannot be put back.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if remaining:
            # Somebody else's alarm, a test's time limit say, goes on counting.
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - begun), 0.001), interval)


def _in_a_thread(seconds: float, function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(OutOfTime))
        worker.join(0.5)
        raise OutOfTime
    if errors:
        raise errors[0]
    return results[0]
