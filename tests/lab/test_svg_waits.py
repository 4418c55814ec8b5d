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
