"""By time, a lane shows a wait also where no step was run: a batch that waits for company computes nothing."""

from __future__ import annotations

import re

import pytest

from tests.engine.driver import Arrival, feed
from tests.engine.paged_fake import open_engine
from workbench.lab import render_step_timeline

WAIT = re.compile(r'<path d="M([\d.]+) [\d.]+H([\d.]+)"[^>]*stroke-dasharray="2 2"')
PLOT = (112.0, 944.0)
"""Left and right edge, in pixels."""


def waits(svg: str) -> list[tuple[float, float]]:
    """(from, to) in pixels of every dashed line in a lane, top to bottom; the legend's own sample is left out."""
    picture = svg.split('data-part="legend"')[0]
    return [(float(left), float(right)) for left, right in WAIT.findall(picture)]


def test_a_lane_waits_from_its_arrival_to_its_departure() -> None:
    engine = open_engine(batching="dynamic", max_num_seqs=10, max_wait_ms=100_000.0)
    [trace] = feed(engine, [Arrival(0.0, "a"), Arrival(40.0, "b")], step_seconds=60.0, last_is_known=False).traces
    assert (trace.time, trace.duration) == (100.0, 60.0)
    svg = render_step_timeline([trace], by_time=True)
    # 160 seconds on 832 pixels.
    assert waits(svg) == [(112.0, pytest.approx(632.0)), (pytest.approx(320.0), pytest.approx(632.0))]
    assert "w waiting" in svg
    assert waits(render_step_timeline([trace])) == []


def test_steps_that_follow_each_other_leave_no_wait() -> None:
    traces = feed(open_engine(), [Arrival(0.0, "a", max_tokens=5), Arrival(0.0, "b", max_tokens=3)]).traces
    svg = render_step_timeline(traces, by_time=True)
    assert waits(svg) == [] and "w waiting" not in svg


def test_a_frame_shows_no_wait_that_is_still_to_come() -> None:
    engine = open_engine(batching="static", max_num_seqs=2)
    traces = feed(engine, [Arrival(t, name) for t, name in [(0, "a"), (1, "b"), (50, "c"), (90, "d")]]).traces
    assert [trace.time for trace in traces] == [1.0, 90.0]
    first, last = (waits(render_step_timeline(traces, count, by_time=True)) for count in (1, 2))
    assert len(first) == 1 and len(last) == 2 and last[:1] == first
    assert all(PLOT[0] <= left < right <= PLOT[1] for left, right in last)


def ticks(svg: str) -> dict[str, float]:
    """Label → x of the axis of time."""
    return {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)" y="14"[^>]*>([\d.]+(?: µs| ms| s)?)<', svg)}


@pytest.mark.parametrize(
    ("step_seconds", "labels"),
    [
        (100.0, ["0", "50 s", "100 s", "150 s", "200 s", "250 s", "300 s"]),
        (0.7, ["0", "0.5 s", "1 s", "1.5 s", "2 s"]),
        (0.02, ["0", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms", "60 ms"]),
        (1e-7, ["0", "0.05 µs", "0.1 µs", "0.15 µs", "0.2 µs", "0.25 µs", "0.3 µs"]),
    ],
)
def test_the_axis_of_time_has_round_marks(step_seconds: float, labels: list[str]) -> None:
    traces = feed(open_engine(), [Arrival(0.0, "a", max_tokens=3)], step_seconds=step_seconds).traces
    found = ticks(render_step_timeline(traces, by_time=True))
    assert list(found) == labels
    left, right = PLOT
    for label, x in found.items():
        number, _, unit = label.partition(" ")
        seconds = float(number) / {"": 1, "s": 1, "ms": 1e3, "µs": 1e6}[unit]
        assert x == pytest.approx(left + (right - left) * seconds / (3 * step_seconds), abs=0.01)


def test_runs_of_different_length_share_an_axis() -> None:
    """A second is as wide in a short run as in a long one that it is compared with."""
    long, short = (feed(open_engine(), [Arrival(0.0, "a", max_tokens=n)], step_seconds=1.0).traces for n in (8, 2))
    together = ticks(render_step_timeline(short, by_time=True, until=8.0))
    assert together == ticks(render_step_timeline(long, by_time=True))
    assert together != ticks(render_step_timeline(short, by_time=True))
    assert ticks(render_step_timeline(long, by_time=True, until=2.0)) == together, "nothing is cut off"
