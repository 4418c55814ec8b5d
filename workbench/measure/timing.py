"""The one way to time something: warmed up, synchronised, repeated, told as a median with its spread.

Torch is imported only to time a GPU. There a time is what the device's own clock says between two events, so that work
which is still queued counts and the launch of the next call does not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import UsageError

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_MOST_CALLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each repetition, in the order they were taken. Raises UsageError if there are none."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise UsageError("a Timing needs at least one repetition, not 0: measure something first")

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """The first quartile: a quarter of the repetitions were faster."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """The third quartile: a quarter of the repetitions were slower."""
        return self._quartile(2)

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a share of the median: 0.1 means the middle half lies within 10 %."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def __str__(self) -> str:
        size, unit = next(known for known in _UNITS if self.median >= known[0])
        shown = [value / (size or 1e-9) for value in (self.low, self.median, self.high)]
        decimals = max(0, 2 - int(math.log10(shown[1]))) if shown[1] >= 1 else 2
        low, median, high = (f"{value:.{decimals}f}" for value in shown)
        return f"{median} {unit} ({low}–{high}, n={len(self.seconds)})"

    def _quartile(self, which: int) -> float:
        if len(self.seconds) == 1:
            return self.seconds[0]
        return statistics.quantiles(self.seconds, n=4, method="inclusive")[which]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several things timed in turn, round after round, so that a slow moment of the machine meets all of them."""

    timings: dict[str, Timing]

    def ratios(self, a: str, b: str) -> tuple[float, ...]:
        """Time of ``a`` over time of ``b``, once for each round. Raises UsageError for a name that was not timed."""
        for name in (a, b):
            if name not in self.timings:
                raise UsageError(f"{name!r} was not timed; there are {', '.join(self.timings)}")
        pairs = zip(self.timings[a].seconds, self.timings[b].seconds, strict=True)
        return tuple(one / other for one, other in pairs)

    def ratio(self, a: str, b: str) -> float:
        """The median of `ratios`: 2.0 means that ``a`` takes twice as long as ``b``."""
        return statistics.median(self.ratios(a, b))

    def __str__(self) -> str:
        return "\n".join(f"{name}: {timing}" for name, timing in self.timings.items())


def time_call(
    fn: Callable[[], Any], *, device: Any = "cpu", warmup: int = 2, repeats: int = 7, min_seconds: float = 0.0
) -> Timing:
    """Times ``fn()``: ``warmup`` calls that do not count, then ``repeats`` that do.

    ``device`` is where its work happens, a name or a ``torch.device``. With ``min_seconds`` one repetition calls ``fn``
    as often as it takes to last so long, and counts the mean: needed where a call is near the clock's own grain. Caches
    are as the call before left them. Raises UsageError for counts below their least and for a GPU that is not there.
    """
    options = {"device": device, "warmup": warmup, "repeats": repeats, "min_seconds": min_seconds}
    return compare({"it": fn}, **options).timings["it"]


def compare(
    fns: Mapping[str, Callable[[], Any]],
    *,
    device: Any = "cpu",
    warmup: int = 2,
    repeats: int = 7,
    min_seconds: float = 0.0,
) -> Comparison:
    """Times several functions in turn (a, b, a, b, …), each as `time_call` does.

    All are warmed up before the first counts. Ratios are taken within a round: see `Comparison.ratio`.
    """
    if not fns:
        raise UsageError("there is nothing to time: give at least one function")
    if repeats < 1 or warmup < 0 or min_seconds < 0:
        raise UsageError(
            f"warmup={warmup}, repeats={repeats}, min_seconds={min_seconds}: the least are 0, 1 and 0; leave them out"
        )
    stopwatch = _stopwatch(device)
    for fn in fns.values():
        for _ in range(warmup):
            fn()
    calls = {name: _calls(stopwatch, fn, min_seconds) for name, fn in fns.items()}
    seconds: dict[str, list[float]] = {name: [] for name in fns}
    for _ in range(repeats):
        for name, fn in fns.items():
            seconds[name].append(stopwatch(fn, calls[name]) / calls[name])
    return Comparison({name: Timing(tuple(measured)) for name, measured in seconds.items()})


_Stopwatch = Callable[[Callable[[], Any], int], float]


def _calls(stopwatch: _Stopwatch, fn: Callable[[], Any], min_seconds: float) -> int:
    """How many calls in a row last ``min_seconds``: a power of two, found by doubling."""
    calls = 1
    while min_seconds and calls < _MOST_CALLS and stopwatch(fn, calls) < min_seconds:
        calls *= 2
    return calls


def _stopwatch(device: Any) -> _Stopwatch:
    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return _on_cpu
    if kind != "cuda":
        raise UsageError(f"device={str(device)!r} cannot be timed; choose from cpu, cuda")
    import torch

    if not torch.cuda.is_available():
        raise UsageError(f"device={str(device)!r}: torch sees no GPU here; leave it out or use device='cpu'")
    return lambda fn, calls: _on_cuda(torch.cuda, torch.device(device), fn, calls)


def _on_cpu(fn: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return time.perf_counter() - start


def _on_cuda(cuda: Any, device: Any, fn: Callable[[], Any], calls: int) -> float:
    with cuda.device(device):
        # What was queued before belongs to somebody else.
        cuda.synchronize()
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            fn()
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
