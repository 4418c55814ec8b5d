"""One measured number beside what was predicted, what the machine allows and what was recorded elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.checks import as_real, as_whole, shown
from workbench.errors import UsageError
from workbench.lab.recorded import RecordedValue
from workbench.lab.table import Table

SECONDS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "us": 1e6, "ns": 1e9}
"""Units of time, and how many of each make a second."""
SMALLER_IS_BETTER = {*SECONDS, "B", "bytes", "kB", "KB", "MB", "GB", "KiB", "MiB", "GiB"}
CLOSE = 0.05
"""A share up to which two numbers count as the same in words."""
HEAD = ("what", "predicted", "roofline", "measured", "recorded")


@dataclass(frozen=True, slots=True)
class Measured:
    """``value`` in ``unit`` (text where a direction was predicted); ``low`` and ``high`` are quartiles where known."""

    name: str
    value: float | str
    unit: str
    low: float | None = None
    high: float | None = None
    repeats: int | None = None
    predicted: float | str | None = None
    roofline: float | None = None
    by_bytes: bool = False
    """Whether ``roofline`` is a ratio of bytes moved, which caches and calls may beat."""
    higher_is_better: bool | None = None
    recorded: tuple[RecordedValue, ...] = ()
    provenance: str = ""
    """One line: commit, date, device, versions."""

    @property
    def gaps(self) -> list[str]:
        """The distance to the guess and to the roofline, in words."""
        found = []
        if self.predicted is not None:
            found.append(against_guess(self.predicted, self.value, self.unit))
        if self.roofline is not None and not isinstance(self.value, str):
            if self.by_bytes:
                return [*found, f"{number(100 * self.value / self.roofline)} % of what bytes say"]
            found.append(against_roofline(self.roofline, self.value, self.unit, self.higher_is_better))
        return found

    @property
    def row(self) -> list[str]:
        """As `HEAD` names them."""
        recorded = [f"{with_unit(past.value, past.unit)} on {past.device}" for past in self.recorded]
        return [
            self.name,
            "–" if self.predicted is None else with_unit(self.predicted, self.unit),
            "–" if self.roofline is None else with_unit(self.roofline, self.unit) + " by bytes" * self.by_bytes,
            with_unit(self.value, self.unit) + self._spread(),
            "; ".join(recorded) or "no recorded run",
        ]

    def table(self) -> Table:
        lines = ["; ".join(self.gaps), *(f"recorded: {past.device}, {past.workload}" for past in self.recorded)]
        return Table(HEAD, [self.row], ". ".join(line for line in [*lines, self.provenance] if line))

    def _spread(self) -> str:
        if self.low is None or self.high is None:
            return ""
        count = "" if self.repeats is None else f", n={self.repeats}"
        return f" ({number(self.low)}–{number(self.high)}{count})"

    def __repr__(self) -> str:
        return f"Measured({self.name}: {with_unit(self.value, self.unit)})"

    def _ipython_display_(self) -> None:
        """Nothing: `Lesson.measure` has shown the table already."""


def reading(name: str, value: Any, unit: str) -> tuple[float | str, float | None, float | None, int | None, str]:
    """A measured value as (value, lower and upper quartile, repeats, unit).

    ``value``: a number, text, a ``Timing`` (its median; ``unit`` must be one of time, default ms), or anything else
    with ``median``, ``low`` and ``high``. Raises UsageError for another value or unit.
    """
    if isinstance(value, str):
        return value, None, None, None, unit
    if (plain := finite(value)) is not None:
        return plain, None, None, None, unit
    if not all(hasattr(value, part) for part in ("median", "low", "high")):
        raise UsageError(f"{name}: measured {shown(value)}; give a number, a Timing, or one of the predicted choices")
    seconds = getattr(value, "seconds", None)
    unit = unit or ("ms" if seconds is not None else "")
    factor = 1.0 if seconds is None else per_second(name, unit)
    repeats = len(seconds) if isinstance(seconds, (list, tuple)) else None
    return value.median * factor, value.low * factor, value.high * factor, repeats, unit


def limit(name: str, roofline: Any, unit: str) -> float | None:
    """The roofline's number in ``unit``: a number as it is, a ``Prediction`` (its ``seconds``) turned into the unit."""
    if roofline is None:
        return None
    if (plain := finite(roofline)) is not None:
        return float(plain)
    seconds = finite(getattr(roofline, "seconds", None))
    if seconds is None:
        raise UsageError(f"{name}: roofline={shown(roofline)}; give a number in {unit or 'the unit of the value'}")
    return seconds * per_second(name, unit)


def per_second(name: str, unit: str) -> float:
    if unit not in SECONDS:
        raise UsageError(f"{name}: a time cannot be given in {unit!r}: choose from {', '.join(SECONDS)}")
    return SECONDS[unit]


def against_guess(guess: float | str, value: float | str, unit: str) -> str:
    """``1.8 times your guess``."""
    if isinstance(guess, str) or isinstance(value, str):
        return "as you guessed" if guess == value else f"not as you guessed ({guess})"
    if guess == value:
        return "exactly your guess"
    if guess == 0 or guess * value <= 0:
        return f"{with_unit(abs(value - guess), unit)} {'above' if value > guess else 'below'} your guess"
    ratio = value / guess
    if abs(ratio - 1) <= CLOSE:
        return f"within {CLOSE:.0%} of your guess".replace("%", " %")
    if ratio > 1:
        return f"{number(ratio)} times your guess"
    return (
        f"{100 * ratio:.0f} % of your guess" if ratio >= 0.1 else f"your guess was {number(1 / ratio)} times too high"
    )


def against_roofline(roof: float, value: float, unit: str, higher_is_better: bool | None) -> str:
    """``62 % of the roofline``: of the best rate or, where less is better, the best value as a share of this one."""
    if higher_is_better is None and (unit in SMALLER_IS_BETTER or unit.endswith("/s")):
        higher_is_better = unit.endswith("/s")
    if roof <= 0 or value <= 0 or higher_is_better is None:
        return f"{with_unit(value, unit)} against a roofline of {with_unit(roof, unit)}"
    share = value / roof if higher_is_better else roof / value
    words = f"{100 * share:.0f} % of the roofline"
    return words if share <= 1 + CLOSE else f"{words}: more than it allows, so a count or the machine's rates are off"


def with_unit(value: float | str, unit: str) -> str:
    text = value if isinstance(value, str) else number(value)
    return f"{text} {unit}" if unit and not isinstance(value, str) else text


def number(value: float) -> str:
    """Three digits that count, whole numbers in full."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def finite(value: Any) -> int | float | None:
    """``value`` as Python's own int or float if it is a finite number of any kind (numpy's too), else None."""
    real, whole = as_real(value), as_whole(value)
    if real is None or not math.isfinite(real):
        return None
    return real if whole is None else whole
