"""A function that never ends is given up on, in the main thread and elsewhere, and nothing else is disturbed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from workbench.lab.time_limit import OutOfTime, call_within


def forever() -> None:
    while True:
        pass


def stubborn() -> None:
    """Swallows every Exception."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def elsewhere(function: Callable[[], object]) -> object:
    """Calls it in a thread; its result or its exception."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    return found[0]


@pytest.mark.parametrize("loop", [forever, stubborn, lambda: time.sleep(3)], ids=["loop", "stubborn", "sleep"])
def test_it_is_given_up_on(loop: Callable[[], None]):
    with pytest.raises(OutOfTime):
        call_within(0.1, loop)
    assert isinstance(elsewhere(lambda: call_within(0.1, loop)), OutOfTime)


def test_a_loop_in_another_thread_ends():
    before = threading.active_count()
    assert isinstance(elsewhere(lambda: call_within(0.1, forever)), OutOfTime)
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_results_and_errors_pass_through():
    assert call_within(5, lambda: 7) == 7
    assert elsewhere(lambda: call_within(5, lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 // 0)
    assert isinstance(elsewhere(lambda: call_within(5, lambda: 1 // 0)), ZeroDivisionError)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
def test_somebody_elses_alarm_goes_on():
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        call_within(5, lambda: time.sleep(0.05))
        assert not rung
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.26
        time.sleep(0.4)
        assert len(rung) == 1
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
