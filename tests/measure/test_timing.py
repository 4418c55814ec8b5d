"""Timings on a clock that stands still unless something moves it; and on a pretended GPU that works on its own time."""

from __future__ import annotations

import contextlib
import statistics
from types import SimpleNamespace

import pytest
import torch

from workbench.errors import UsageError
from workbench.measure import timing
from workbench.measure.timing import Comparison, Timing, compare, time_call


class Clock:
    """Time passes only by `takes`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 100.0, []
        patch.setattr(timing.time, "perf_counter", lambda: self.now)

    def takes(self, name: str, *seconds: float):
        """A function that takes these seconds, one after the other, and the last from then on."""
        left = list(seconds)

        def fn() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return fn


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_statistics_are_those_of_the_middle_half() -> None:
    one = Timing((5.0, 1.0, 2.0, 4.0, 3.0))
    assert (one.low, one.median, one.high) == (2.0, 3.0, 4.0)
    assert one.spread == pytest.approx(2 / 3)
    assert Timing((7.0,)).spread == 0 and Timing((0.0, 0.0)).spread == 0
    assert one.seconds == (5.0, 1.0, 2.0, 4.0, 3.0), "the order of repetitions is kept: ratios need it"
    with pytest.raises(UsageError, match="at least one"):
        Timing(())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((3.0e-3, 3.1e-3, 3.21e-3, 3.4e-3, 3.9e-3), "3.21 ms (3.10–3.40, n=5)"),
        ((2.5,), "2.50 s (2.50–2.50, n=1)"),
        ((1234.0,), "1234 s (1234–1234, n=1)"),
        ((4.21e-5, 2e-3, 2e-3, 4.2e-5, 4.2e-5), "42.1 µs (42.0–2000.0, n=5)"),
        ((7e-8,), "70.0 ns (70.0–70.0, n=1)"),
        ((0.0,), "0.00 ns (0.00–0.00, n=1)"),
    ],
)
def test_a_timing_reads_as_median_quartiles_and_count(seconds: tuple[float, ...], text: str) -> None:
    assert str(Timing(seconds)) == text


def test_warm_up_does_not_count(clock: Clock) -> None:
    slow_at_first = clock.takes("a", 60.0, 60.0, 1.0, 2.0, 3.0)
    assert time_call(slow_at_first, warmup=2, repeats=3).seconds == pytest.approx((1.0, 2.0, 3.0))
    assert len(clock.calls) == 5


def test_short_calls_are_repeated_until_they_last(clock: Clock) -> None:
    found = time_call(clock.takes("a", 0.001), warmup=0, repeats=4, min_seconds=0.1)
    assert found.seconds == pytest.approx((0.001,) * 4)
    tried = sum(2**i for i in range(8))  # 1, 2, 4 … 128 calls: 128 ms are the first that last 100
    assert len(clock.calls) == tried + 4 * 128


def test_rounds_are_interleaved_and_all_are_warm_before_the_first(clock: Clock) -> None:
    compare({"a": clock.takes("a", 1.0), "b": clock.takes("b", 1.0)}, warmup=1, repeats=3)
    assert "".join(clock.calls) == "ab" + "ababab"


def test_a_ratio_is_taken_within_a_round(clock: Clock) -> None:
    """Noise that hits both sides of a round cancels; the ratio of the medians would not see that."""
    noise = (1.0, 9.0, 2.0, 8.0, 1.5)
    halves = clock.takes("b", *(n * f for n, f in zip(noise, (2, 2, 9, 2, 2), strict=True)))
    both = compare({"a": clock.takes("a", *noise), "b": halves}, warmup=0, repeats=5)
    assert both.ratio("a", "b") == pytest.approx(0.5) and both.ratio("b", "a") == pytest.approx(2.0)
    assert both.ratios("b", "a") == pytest.approx((2, 2, 9, 2, 2))
    medians = [statistics.median(both.timings[name].seconds) for name in "ab"]
    assert medians[1] / medians[0] != pytest.approx(2.0)


def test_what_cannot_be_timed_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'c' was not timed; there are a, b"):
        Comparison({"a": Timing((1.0,)), "b": Timing((1.0,))}).ratio("a", "c")
    with pytest.raises(UsageError, match="nothing to time"):
        compare({})
    for wrong in ({"repeats": 0}, {"warmup": -1}, {"min_seconds": -1.0}):
        with pytest.raises(UsageError, match="the least are"):
            time_call(print, **wrong)
    with pytest.raises(UsageError, match="'toaster' cannot be timed"):
        time_call(print, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="sees no GPU"):
            time_call(print, device=torch.device("cuda", 0))


class PretendedGpu:
    """Work is queued in no time and done later; an event is stamped when the queue comes to it."""

    def __init__(self) -> None:
        self.queued = 0.0
        self.done = 0.0

    def synchronize(self) -> None:
        self.done = self.queued

    def device(self, which: torch.device) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", self.queued)
        event.synchronize = lambda: setattr(self, "done", max(self.done, event.at))

        def elapsed_time(end: SimpleNamespace) -> float:
            assert end.at <= self.done, "asked before the device had come to the event"
            return (end.at - event.at) * 1e3

        event.elapsed_time = elapsed_time
        return event


def test_gpu_time_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PretendedGpu()
    monkeypatch.setattr(torch, "cuda", gpu)
    gpu.is_available = lambda: True

    def kernel() -> None:
        gpu.queued += 0.25

    gpu.queued = 50.0  # left behind by somebody else
    assert time_call(kernel, device="cuda", warmup=1, repeats=2).seconds == pytest.approx((0.25, 0.25))


@pytest.mark.gpu
def test_on_a_gpu_the_work_counts_and_not_only_its_launch() -> None:
    a = torch.randn(8192, 8192, device="cuda")
    both = compare({"one": lambda: a @ a, "four": lambda: [a @ a for _ in range(4)]}, device="cuda")
    assert 3 < both.ratio("four", "one") < 5
