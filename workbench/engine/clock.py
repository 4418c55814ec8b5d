"""Time is passed in: a wall clock for real runs, a virtual one for simulated and tested runs."""

from __future__ import annotations

import math
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the clock was made."""


class WallClock:
    """Real seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def advance_to(self, moment: float) -> None:
        """Sleeps until ``moment``; returns at once when it has passed. ``inf`` is refused: nothing would wake it."""
        if math.isinf(moment):
            raise ValueError("nobody would wake from a sleep without an end")
        time.sleep(max(0.0, moment - self.now()))


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves time forward. ``seconds`` must not be negative."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Moves time forward to ``moment``; does nothing when it has passed. ``inf`` is refused, as by a real clock."""
        if math.isinf(moment):
            raise ValueError("nobody would wake from a sleep without an end")
        self._now = max(self._now, moment)
