"""When requests arrive in an open loop: times in seconds after the start, in order. No torch.

Each function is one process, drawn from one seed. With a finite rate the times are stretched so that the last arrival
is at ``n / rate`` (as vLLM's benchmark does): the offered load is then exactly the rate, in short runs too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from workbench.errors import UsageError


def at_once(n: int) -> list[float]:
    """Everything is there at the start: the rate is infinite."""
    return [0.0] * n


def poisson(n: int, rate: float, seed: int) -> list[float]:
    """Independent arrivals, ``rate`` a second: gaps are exponential, so a burst is as random as a lull."""
    return gamma(n, rate, 1.0, seed)


def gamma(n: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Gaps from a gamma distribution of shape ``burstiness`` and mean ``1 / rate``, under vLLM's name.

    The deviation of a gap is ``1 / sqrt(burstiness)`` of its mean. 1 is Poisson; below 1 requests come in bursts; above
    1 they come evenly.
    """
    _positive("request rate", rate)
    _positive("burstiness", burstiness)
    if math.isinf(rate):
        return at_once(n)
    draw = random.Random(f"{seed}/arrivals")
    times, now = [], 0.0
    for _ in range(n):
        now += draw.gammavariate(burstiness, 1.0)  # in a unit of its own: stretching gives the rate
        times.append(now)
    return _stretched(times, n / rate)


def on_off(n: int, rate: float, on: float, off: float, seed: int) -> list[float]:
    """Poisson arrivals at ``rate`` for ``on`` seconds, silence for ``off`` seconds, and so on.

    The long-run rate is ``rate · on / (on + off)``. Not stretched: the silences stand where they are said to.
    """
    _positive("request rate", rate)
    _positive("on time", on)
    if math.isinf(rate) or math.isinf(on) or not (math.isfinite(off) and off >= 0):
        raise UsageError(f"on/off arrivals need a finite rate and finite times, not rate {rate}, on {on}, off {off}")
    draw = random.Random(f"{seed}/arrivals")
    times, busy = [], 0.0
    for _ in range(n):
        busy += draw.expovariate(rate)  # time spent in on periods; the silences are put in between
        times.append(busy + off * math.floor(busy / on))
    return times


def replayed(timestamps: Sequence[float], speed: float = 1.0) -> list[float]:
    """Recorded times, moved to start at 0 and divided by ``speed`` (2: twice as fast). They must not go back."""
    _positive("speed", speed)
    if math.isinf(speed):
        return at_once(len(timestamps))
    for before, after in itertools.pairwise(timestamps):
        if after < before:
            raise UsageError(f"timestamps go back from {before} to {after}: sort them")
    return [(time - timestamps[0]) / speed for time in timestamps]


def _stretched(times: list[float], last: float) -> list[float]:
    factor = last / times[-1] if times and times[-1] > 0 else 1.0
    return [time * factor for time in times]


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"a {name} of {value} must be more than 0")
