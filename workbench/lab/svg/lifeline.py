"""The life of one request: arrival, waiting and why, prefill chunks, first token, decodes, preemptions, end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.snapshot import check_steps
from workbench.lab.story import Event, arrivals, lanes
from workbench.lab.svg.canvas import FONT, Canvas, duration, labels, text_width
from workbench.lab.svg.cells import WIDTH, draw_event, draw_legend, legend_entries, legend_rows

_LEFT, _BAR, _HEIGHT = 96, 66, 26
_MOST_ROWS = 6
"""Rows of words under the bar; a wait for which none is free keeps its bracket and its title."""
HELD = "batch not done"
"""Why a request is held that has its whole answer."""


def render_lifeline(traces: Sequence[StepTrace], request_id: str, *, by_time: bool | None = None) -> str:
    """SVG of one request from its arrival to its end, or as far as the traces go.

    ``by_time``: the x axis is the engine's clock; unless said, where that moved. TTFT is arrival to the end of the step
    that gave the first token, ITL the gap between two tokens, in seconds or, without a clock, in steps. Raises
    UsageError for a request that the traces do not know or whose id was used twice.
    """
    check_steps(traces)
    life = _Life(traces, request_id, by_time)
    cells = life.cells
    width = float(WIDTH)
    legend = legend_rows(legend_entries(event for _, _, event in cells), width - 16)
    waits = _placed_waits(life)
    below = _BAR + _HEIGHT + 16 * (1 + max((row for *_, row in waits), default=-1)) + 8
    height = below + 74 + 18 * len(legend)
    canvas = Canvas(width, height)
    canvas.text(8, 16, f"request {labels([request_id], 40)[request_id]}", FONT + 1, bold=True)
    canvas.text(8, 34, life.summary, FONT)
    canvas.text(_LEFT - 8, _BAR + 17, "by time" if life.by_time else "by step", FONT, "end")
    for step, (left, right, event) in zip(life.steps, cells, strict=True):
        canvas.open(f"step {step}: {event.words}", step=step, kind=event.kind, tokens=event.num_tokens)
        draw_event(canvas, event, life.x(left), _BAR, max(life.x(right) - life.x(left), 1.0), _HEIGHT)
        canvas.close()
    _moments(canvas, life)
    for (left, right, reason), text, at, row in waits:
        y = _BAR + _HEIGHT + 16 * max(row, 0) + 12
        canvas.open(text, waits=reason)
        canvas.lines(f"M{life.x(left):.1f} {y - 8:.1f}v3H{life.x(right):.1f}v-3", 0.8)
        if row >= 0:
            canvas.text(at, y + 6, text, FONT - 1)
        canvas.close()
    _gaps(canvas, life, below)
    draw_legend(canvas, legend, 8, below + 66)
    return canvas.svg(f"Life of request {request_id}", f"{life.summary}.")


class _Life:
    """One request's cells, tokens and the scale of its x axis."""

    def __init__(self, traces: Sequence[StepTrace], request_id: str, by_time: bool | None) -> None:
        row = lanes(traces).get(request_id)
        if row is None:
            known = ", ".join(list(lanes(traces))[:8])
            raise UsageError(f"request {request_id!r} does not occur in these traces; some that do: {known}")
        adds = [
            event for trace in traces for event in trace.inputs if event.get("add", {}).get("request_id") == request_id
        ]
        if len(adds) > 1:
            raise UsageError(
                f"request id {request_id!r} was used {len(adds)} times: give the traces of one of its lives"
            )
        indices = [index for index, event in enumerate(row) if event is not None]
        arrived = arrivals(traces).get(request_id)
        first, last = traces[indices[0]], traces[indices[-1]]
        moved = last.time + last.duration > (arrived[1] if arrived else first.time)
        if by_time and not moved:
            raise UsageError("by_time=True needs a clock that moved, and this one stood still: leave it out")
        self.by_time = moved if by_time is None else by_time
        self.arrived = None if arrived is None else arrived[1] if self.by_time else float(arrived[0])
        self.cells: list[tuple[float, float, Event]] = []
        self.steps = [traces[index].step for index in indices]
        for index in indices:
            event, trace = row[index], traces[index]
            assert event is not None
            left, right = (trace.time, trace.time + trace.duration) if self.by_time else (index, index + 1)
            if self.by_time and event.kind in ("waiting", "held"):
                # It waits, or is held, between the steps too.
                left = self.cells[-1][1] if self.cells else left if self.arrived is None else self.arrived
            self.cells.append((float(left), float(right), event))
        self.tokens = [right for _, right, event in self.cells if event.new_token]
        self.begin = self.cells[0][0] if self.arrived is None else min(self.arrived, self.cells[0][0])
        self.end = self.cells[-1][1]
        self.summary = self._summary()

    def x(self, at: float) -> float:
        # A short life in steps is not stretched over the whole width.
        plot = WIDTH - _LEFT - 24.0
        if not self.by_time:
            plot = min(plot, 46.0 * (self.end - self.begin))
        return _LEFT + (at - self.begin) / (self.end - self.begin) * plot

    def amount(self, value: float) -> str:
        if self.by_time:
            return duration(value)
        return f"{value:.0f} step{'' if value == 1 else 's'}"

    def reasons(self) -> list[tuple[float, float, str]]:
        """The spans in which it waited or was held, each with its reason."""
        found = []
        for (kind, reason), group in groupby(self.cells, lambda cell: (cell[2].kind, cell[2].reason)):
            span = list(group)
            if kind in ("waiting", "held"):
                found.append((span[0][0], span[-1][1], reason if kind == "waiting" else HELD))
        return found

    def gaps(self) -> list[float]:
        return [after - before for before, after in pairwise(self.tokens)]

    def _summary(self) -> str:
        events = [event for _, _, event in self.cells]
        chunks = [event.num_tokens for event in events if event.kind == "prefill"]
        parts = [f"prefill of {sum(chunks)} tokens in {len(chunks)} chunk{'' if len(chunks) == 1 else 's'}"]
        parts += [f"{len(self.tokens)} new tokens"]
        preempted = sum(event.kind == "preempted" for event in events)
        again = sum(event.num_tokens for event in events if event.kind == "recompute")
        parts += [f"preempted {preempted}×, {again} tokens computed again"] if preempted else []
        held = sum(event.kind == "held" for event in events)
        parts += [f"held for {held} step{'' if held == 1 else 's'}"] if held else []
        parts += [f"ended: {events[-1].ended}" if events[-1].ended else "not ended yet"]
        return "; ".join(parts)


def _placed_waits(life: _Life) -> list[tuple[tuple[float, float, str], str, float, int]]:
    """Each span of waiting with its words, their x, and the row that is free there; -1 where no row is."""
    ends = [0.0] * _MOST_ROWS
    found = []
    for span in life.reasons():
        left, right, reason = span
        verb = "held" if reason == HELD else "waits"
        text = f"{verb} {life.amount(right - left)}: {reason or 'no reason listed'}"
        width = text_width(text, FONT - 1)
        at = min(life.x(left), WIDTH - 8 - width)
        row = next((row for row, end in enumerate(ends) if at >= end + 6), -1)
        if row >= 0:
            ends[row] = max(at + width, life.x(right))
        found.append((span, text, at, row))
    return found


def _moments(canvas: Canvas, life: _Life) -> None:
    """Arrival, first token, preemptions and the end, named above the bar; texts that would touch get a second row."""
    marks = [(life.arrived, "arrival")] if life.arrived is not None else []
    marks += [(life.tokens[0], "first token")] if life.tokens else []
    marks += [(left, "preempted") for left, _, event in life.cells if event.kind == "preempted"]
    if life.cells[-1][2].ended:
        marks.append((life.end, life.cells[-1][2].ended))
    ends = [0.0, 0.0]
    for at, words in sorted(marks):
        x, width = life.x(at), text_width(words, FONT - 1)
        left = min(max(x - width / 2, 8), WIDTH - 8 - width)
        row = next((row for row in (0, 1) if left >= ends[row] + 4), None)
        canvas.open(words, moment=words)
        canvas.lines(f"M{x:.1f} {_BAR - 4}v{_HEIGHT + 8}", 1.4, opacity=1)
        if row is not None:  # more than two rows of the same word would say nothing new
            ends[row] = left + width
            canvas.text(left, _BAR - 7 - 12 * row, words, FONT - 1)
        canvas.close()


def _gaps(canvas: Canvas, life: _Life, top: float) -> None:
    """Brackets: arrival to first token, then token to token with the longest gap named."""
    if not life.tokens:
        return
    if life.arrived is not None:
        y = top + 10
        ttft = life.tokens[0] - life.arrived
        left, right = life.x(life.arrived), life.x(life.tokens[0])
        canvas.text(_LEFT - 8, y + 6, "TTFT", FONT, "end", bold=True)
        canvas.open(f"TTFT {life.amount(ttft)}", ttft=repr(ttft))
        canvas.lines(f"M{left:.1f} {y - 4:.1f}v8M{left:.1f} {y:.1f}H{right:.1f}M{right:.1f} {y - 4:.1f}v8", 1.4)
        canvas.text(left, y + 16, life.amount(ttft), FONT - 1)
        canvas.close()
    gaps = life.gaps()
    if not gaps:
        return
    y = top + 42
    canvas.text(_LEFT - 8, y + 6, "ITL", FONT, "end", bold=True)
    for before, gap in zip(life.tokens, gaps, strict=False):
        canvas.open(f"ITL {life.amount(gap)}", itl=repr(gap))
        left, right = life.x(before), life.x(before + gap)
        canvas.lines(f"M{left:.1f} {y - 4:.1f}v8M{left:.1f} {y:.1f}H{right:.1f}M{right:.1f} {y - 4:.1f}v8", 1)
        canvas.close()
    text = f"longest {life.amount(max(gaps))}, mean {_mean(life, gaps)}"
    canvas.text(min(life.x(life.tokens[0]), WIDTH - 8 - text_width(text, FONT - 1)), y + 16, text, FONT - 1)


def _mean(life: _Life, gaps: Sequence[float]) -> str:
    mean = sum(gaps) / len(gaps)
    return duration(mean) if life.by_time else f"{mean:.3g} step{'' if mean == 1 else 's'}"
