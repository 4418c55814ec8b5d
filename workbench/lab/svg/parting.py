"""Where two simulated runs part: what each of them decided in the first step that differs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.story import Event, events
from workbench.lab.svg.canvas import FONT, Canvas, duration, labels
from workbench.lab.svg.cells import WIDTH, draw_event, draw_legend, legend_entries, legend_rows
from workbench.lab.table import Cell, Table
from workbench.simulate.what_if import Parting

MAX_ROWS = 40
"""Requests that are shown; of more, those of which the runs differ come first."""
_LEFT, _TOP, _ROW, _GAP, _FOOT = 112, 44, 24, 16, 18
_SIDE = (WIDTH - _LEFT - 2 * _GAP) / 2
_BAR = 0.36 * _SIDE
"""Pixels of the longest bar; words stand behind it."""
_LEAST = 5.0
"""Pixels of a decode, so that it can be seen beside a prompt."""


class _Side(NamedTuple):
    """One of the two runs in this step."""

    name: str
    events: dict[str, Event]
    tokens: str
    time: str


def parting_table(parting: Parting, names: Sequence[str] = ("one", "other")) -> Table:
    """One row a request of the step, ``≠`` where the two runs (``names``) differ; then tokens and time of the step.

    ``parting``: what `workbench.simulate.what_if` found. Raises UsageError for None, which says that the runs never
    part, and unless there are two different names.
    """
    sides = _sides(parting, names)
    shown, left = _rows(parting)
    rows: list[list[Cell | str | int]] = []
    for name, pair in shown.items():
        mark = Cell("≠", "alert") if pair[0] != pair[1] else "="
        tones = [side.events[name].tone if name in side.events else "quiet" for side in sides]
        rows.append([mark, name, *map(Cell, pair, tones)])
    if left:
        rows.append(["", f"{left} more", "", ""])
    rows.append(["", "tokens", *(side.tokens for side in sides)])
    rows.append(["", "time", *(side.time for side in sides)])
    caption = f"simulated; step {parting.step} is the first in which the two runs decide differently (≠)"
    return Table(["", "request", *(side.name for side in sides)], rows, caption)


def render_parting(parting: Parting, names: Sequence[str] = ("one", "other")) -> str:
    """The same as SVG: the runs side by side, tokens as bars on one scale. Raises as `parting_table`."""
    sides = _sides(parting, names)
    shown, left = _rows(parting)
    drawn = [side.events[name] for side in sides for name in shown if name in side.events]
    most = max([1, *(event.num_tokens for event in drawn)])
    legend = legend_rows(legend_entries(drawn), WIDTH - 16)
    foot = _TOP + _ROW * (len(shown) + bool(left))
    legend_top = foot + 2 * _FOOT + 14
    canvas = Canvas(WIDTH, legend_top + 18 * len(legend) + 6)
    starts = (_LEFT + _GAP, _LEFT + 2 * _GAP + _SIDE)
    canvas.text(_LEFT - 8, 16, f"step {parting.step}", FONT, "end", bold=True)
    canvas.text(_LEFT - 8, 32, "simulated", FONT - 1, "end")
    canvas.text(_LEFT - 8, foot + 16, "tokens", FONT, "end", bold=True)
    canvas.text(_LEFT - 8, foot + 16 + _FOOT, "time", FONT, "end", bold=True)
    canvas.lines(f"M8 {foot}H{WIDTH - 16}", 0.5, opacity=0.25)
    for side, x in zip(sides, starts, strict=True):
        canvas.text(x, 16, side.name, FONT + 1, bold=True)
        canvas.lines(f"M{x:.1f} {_TOP - 16}h{_SIDE:.1f}", 0.8)
        canvas.text(x, foot + 16, side.tokens)
        canvas.text(x, foot + 16 + _FOOT, side.time)
    short = labels(shown, 11)
    for row, (name, pair) in enumerate(shown.items()):
        y, differs = _TOP + _ROW * row, pair[0] != pair[1]
        canvas.open(f"{name}: {sides[0].name}: {pair[0]}; {sides[1].name}: {pair[1]}", request=name, differs=+differs)
        canvas.text(_LEFT - 8, y + 11, f"{short[name]} {'≠' if differs else '='}", FONT, "end", bold=differs)
        for text, side, x in zip(pair, sides, starts, strict=True):
            end = _draw(canvas, side.events.get(name), x, y, most)
            canvas.text(end, y + 11, text)
        canvas.close()
    if left:
        canvas.text(_LEFT - 8, foot - _ROW + 11, f"{left} more", FONT, "end")
    draw_legend(canvas, legend, 8, legend_top)
    what = f"{sides[0].name} and {sides[1].name} decide differently on {len(parting.differences())} requests"
    return canvas.svg("Where two runs part", f"Simulated. Step {parting.step} is the first in which {what}.")


def _draw(canvas: Canvas, event: Event | None, x: float, y: float, most: int) -> float:
    """Draws what happened to a request on one side; returns where its words begin."""
    if event is None or event.kind == "ended":
        return x
    width = max(_LEAST, _BAR * event.num_tokens / most) if event.num_tokens else 24.0
    draw_event(canvas, event, x, y, width, _ROW - 8)
    return x + width + 6


def _sides(parting: Parting, names: Sequence[str]) -> tuple[_Side, _Side]:
    if not isinstance(parting, Parting):
        raise UsageError(f"parting={parting!r} shows nothing: two runs must part; see workbench.simulate.what_if")
    if isinstance(names, str) or len(names) != 2 or names[0] == names[1]:
        raise UsageError(f"names={names!r}: give two different names, one for each run")
    return _side(names[0], parting.one), _side(names[1], parting.other)


def _side(name: str, trace: StepTrace | None) -> _Side:
    if trace is None:
        return _Side(name, {}, "none", "this run was over")
    tokens = sum(item["num_tokens"] for item in trace.scheduled)
    begin = duration(trace.time) if trace.time else "0"
    return _Side(name, events(trace), str(tokens), f"from {begin}, takes {duration(trace.duration)}")


def _rows(parting: Parting) -> tuple[dict[str, tuple[str, str]], int]:
    """The requests that are shown, and how many are not."""
    found = parting.requests()
    if len(found) <= MAX_ROWS:
        return found, 0
    ordered = list((parting.differences() | found).items())
    return dict(ordered[:MAX_ROWS]), len(found) - MAX_ROWS
