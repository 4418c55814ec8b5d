"""How long prompts and answers are: distributions of token counts, from a text such as ``16:512``. No torch."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import UsageError


class Lengths(Protocol):
    """A distribution of token counts, each at least 1. ``str`` gives the text that `parse_lengths` reads."""

    def draw(self, rng: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every count from ``low`` to ``high``, both included, alike; a fixed length when they are the same."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_span(self.low, self.high, str(self))

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of all counts below ``median``, a long tail above: the logarithm is normal with deviation ``sigma``.

    Rounded, then held between ``low`` and ``high``.
    """

    median: float
    sigma: float
    low: int = 1
    high: int = 1 << 20

    def __post_init__(self) -> None:
        _check_span(self.low, self.high, str(self))
        if not (math.isfinite(self.median) and self.median >= 1 and math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(f"lengths {self}: the median must be at least 1 and sigma at least 0")

    def draw(self, rng: random.Random) -> int:
        return min(max(round(rng.lognormvariate(math.log(self.median), self.sigma)), self.low), self.high)

    def __str__(self) -> str:
        return f"lognormal:{self.median:g}:{self.sigma:g}:{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Zipf:
    """Counts from ``low`` to ``high``; the k-th of them has a chance in proportion to 1 / k^alpha: most are short."""

    alpha: float
    low: int
    high: int
    _cumulative: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_span(self.low, self.high, str(self))
        weights = zipf_weights(self.alpha, self.high - self.low + 1)
        object.__setattr__(self, "_cumulative", list(itertools.accumulate(weights)))

    def draw(self, rng: random.Random) -> int:
        return rng.choices(range(self.low, self.high + 1), cum_weights=self._cumulative)[0]

    def __str__(self) -> str:
        return f"zipf:{self.alpha:g}:{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Observed:
    """Counts drawn, with replacement, from ``counts`` that were seen, in a trace for instance."""

    counts: tuple[int, ...]
    source: str = "observed"

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise UsageError(f"lengths from {self.source}: there must be at least one count, and none below 1")

    def draw(self, rng: random.Random) -> int:
        return rng.choice(self.counts)

    def __str__(self) -> str:
        return self.source


def zipf_weights(alpha: float, count: int) -> list[float]:
    """1 / k^alpha for k = 1 … ``count``."""
    if not (math.isfinite(alpha) and alpha >= 0):
        raise UsageError(f"a Zipf exponent of {alpha} must be a finite number of at least 0 (0 = all alike)")
    return [k**-alpha for k in range(1, count + 1)]


def described(lengths: Lengths) -> list[int] | str:
    """As it stands in a result's ``workload``: ``[low, high]`` for a uniform range, else its text."""
    return [lengths.low, lengths.high] if isinstance(lengths, Uniform) else str(lengths)


def parse_lengths(text: str) -> Lengths:
    """``128``, ``16:512`` (uniform), ``lognormal:MEDIAN:SIGMA[:MIN:MAX]`` or ``zipf:ALPHA:MIN:MAX``."""
    kind, *numbers = text.split(":")
    try:
        if kind == "lognormal" and len(numbers) in (2, 4):
            return LogNormal(float(numbers[0]), float(numbers[1]), *map(int, numbers[2:]))
        if kind == "zipf" and len(numbers) == 3:
            return Zipf(float(numbers[0]), int(numbers[1]), int(numbers[2]))
        if len(numbers) <= 1:
            return Uniform(int(kind), int((numbers or [kind])[0]))
    except UsageError:
        raise
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is no length: give 128, a range 16:512, lognormal:MEDIAN:SIGMA[:MIN:MAX] or zipf:ALPHA:MIN:MAX"
    )


def _check_span(low: int, high: int, text: str) -> None:
    if not 1 <= low <= high:
        raise UsageError(f"lengths {text}: they must run from at least 1 upwards, such as 16:512")
