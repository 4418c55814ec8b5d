"""A request that has its whole answer and keeps its seat is shown as held, not waiting: tables and pictures alike."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.engine.driver import Arrival, Run, feed
from tests.engine.paged_fake import open_engine
from workbench.lab import render_lifeline, render_step_timeline, step_table, timeline
from workbench.lab.story import events, lanes, sentence
from workbench.lab.table import Cell

ANSWERS = {"a": 2, "b": 6, "c": 4}


@pytest.fixture(scope="module")
def trip() -> Run:
    """Three seats, three answers, and a fourth request that waits for the next trip."""
    engine = open_engine(batching="static", max_num_seqs=3)
    arrivals = [Arrival(0.0, name, max_tokens=answer) for name, answer in ANSWERS.items()]
    return feed(engine, [*arrivals, Arrival(0.0, "d", max_tokens=3)], step_seconds=0.5)


def kinds(trip: Run, name: str) -> list[str]:
    return [event.kind for event in lanes(trip.traces)[name] if event is not None]


def test_a_lane_is_held_from_its_last_token_to_the_end_of_the_batch(trip: Run) -> None:
    assert kinds(trip, "a") == ["prefill", "decode", *["held"] * 4]
    assert kinds(trip, "b") == ["prefill", *["decode"] * 5]
    assert kinds(trip, "c") == ["prefill", *["decode"] * 3, *["held"] * 2]
    assert kinds(trip, "d") == [*["waiting"] * 6, "prefill", "decode", "decode"]
    told = sum(len(trace.held) for trace in trip.traces)
    assert told == 6 == sum(kind == "held" for name in ANSWERS for kind in kinds(trip, name))


def test_who_is_held_returns_with_the_slowest(trip: Run) -> None:
    last = events(trip.traces[5])
    assert {name: (event.kind, event.ended) for name, event in last.items() if name != "d"} == {
        "a": ("held", "length"), "b": ("decode", "length"), "c": ("held", "length")
    }  # fmt: skip
    assert last["a"].sign == "h!" and "a held, ended: length" in sentence(trip.traces[5])


def marked(svg: str, name: str) -> list[dict[str, str]]:
    found = [element.attrib for element in ET.fromstring(svg).iter() if f"data-{name}" in element.attrib]
    assert found
    return found


@pytest.mark.parametrize("by_time", [False, True])
def test_the_timeline_draws_them_as_held(trip: Run, by_time: bool) -> None:
    svg = render_step_timeline(trip.traces, by_time=by_time)
    drawn = [
        (cell["data-request"], int(cell["data-step"])) for cell in marked(svg, "kind") if cell["data-kind"] == "held"
    ]
    assert sorted(drawn) == sorted((name, trace.step) for trace in trip.traces for name in trace.held)
    assert "h held: answer complete" in svg
    busy = feed(open_engine(max_num_seqs=3), [Arrival(0.0, name, max_tokens=n) for name, n in ANSWERS.items()])
    assert "held" not in render_step_timeline(busy.traces, by_time=by_time), "the legend explains only what occurs"


def test_the_lifeline_says_how_long_and_why(trip: Run) -> None:
    svg = render_lifeline(trip.traces, "a")
    [span] = marked(svg, "waits")
    assert span["data-waits"] == "batch not done" and "held 2 s: batch not done" in svg
    assert "held for 4 steps; ended: length" in svg
    assert "held" not in render_lifeline(trip.traces, "b")
    [span] = marked(render_lifeline(trip.traces, "d"), "waits")
    assert span["data-waits"] == "waiting_batch"


def test_the_tables_say_it(trip: Run) -> None:
    table = timeline(trip.traces)
    rows = {str(row[0]): [cell.text if isinstance(cell, Cell) else str(cell) for cell in row[1:]] for row in table.rows}
    assert rows["a"][:6] == ["p1*", "d", "h", "h", "h", "h!"] and "h = held" in table.caption
    left_out = [row[2].text for row in step_table(trip.traces).rows if isinstance(row[2], Cell)]
    assert left_out[2] == "d: waiting_batch; a: held" and left_out[5] == "d: waiting_batch; a: held; c: held"
