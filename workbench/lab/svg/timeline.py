"""The run of an engine: requests as lanes, steps or seconds from left to right, the tokens of each step below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.snapshot import check_steps
from workbench.lab.story import Event, arrivals, lanes, sentence
from workbench.lab.svg.canvas import FONT, Canvas, labels, number, text_width
from workbench.lab.svg.cells import (
    WIDTH,
    Frames,
    draw_event,
    draw_legend,
    frame_steps,
    legend_entries,
    legend_rows,
)

MAX_LANES = 64
_LEFT, _TOP, _BARS, _GAP = 112, 26, 44, 14
_LEAST_WAIT = 2.0
"""Pixels from which a wait between two steps is drawn: an engine at work has tiny gaps."""
_MOST_TITLES = 1500
"""Cells up to which each says in words what it shows when pointed at; more would make the text too large."""


def render_step_timeline(
    traces: Sequence[StepTrace],
    upto: int | None = None,
    *,
    by_time: bool = False,
    budget: int | None = None,
    slots: int | None = None,
    until: float | None = None,
) -> str:
    """SVG of the first ``upto`` steps (all unless said), laid out for the whole run, so that frames do not jump.

    ``by_time``: the x axis is the engine's clock. ``budget``: ``max_num_batched_tokens``, drawn as a line over the
    tokens of each step. ``slots``: ``max_num_seqs``; a row then counts those without work. ``until``: a later
    second of the clock up to which the axis of time goes, so that runs can be compared. Raises UsageError for no steps,
    more than 400, more than 64 requests, or ``by_time`` where the clock stood still.
    """
    shown = check_steps(traces, upto)
    plan = _layout(traces, by_time, budget, slots, until)
    canvas = Canvas(plan.width, plan.height)
    _axis(canvas, plan, traces, by_time)
    starts = arrivals(traces)
    for lane, (name, row) in enumerate(plan.lanes.items()):
        y = _TOP + lane * plan.lane_height
        canvas.open(name, lane=name)
        canvas.text(_LEFT - 8, y + plan.lane_height / 2 + 4, plan.labels[name], plan.font, "end")
        canvas.close()
        begin = starts.get(name)
        before = math.inf
        if begin and begin[0] < shown:
            before = plan.at(begin[1]) if by_time else plan.columns[begin[0]][0]
            canvas.solid(f"M{before - 4:.1f} {y + plan.lane_height / 2 - 3:.1f}l4 3l-4 3z")
        for index, event in enumerate(row[:shown]):
            if event is not None:
                left, right = plan.columns[index]
                if by_time and left - before >= _LEAST_WAIT:  # it waits, or is held, between the steps too
                    between = Event("held" if event.kind == "held" else "waiting")
                    draw_event(canvas, between, before, y + 2, left - before, plan.lane_height - 4)
                before = right
                step = traces[index].step
                title = f"{name}, step {step}: {event.words}" if plan.titles else ""
                canvas.open(title, request=name, step=step, kind=event.kind, tokens=event.num_tokens)
                draw_event(canvas, event, left, y + 2, max(right - left, 1.0), plan.lane_height - 4)
                canvas.close()
    _tokens(canvas, plan, traces[:shown], budget)
    if slots is not None:
        _idle(canvas, plan, traces[:shown], slots)
    draw_legend(canvas, plan.legend, 8, plan.legend_top)
    computed = sum(item["num_tokens"] for trace in traces[:shown] for item in trace.scheduled)
    new = sum(len(trace.new_tokens) for trace in traces[:shown])
    what = f"{shown} of {len(traces)} steps, {len(plan.lanes)} requests: {computed} tokens computed, {new} new tokens"
    return canvas.svg("Step timeline", f"{what}. {sentence(traces[shown - 1]) if shown else 'Nothing is run yet'}.")


def timeline_frames(
    traces: Sequence[StepTrace], *, by_time: bool = False, budget: int | None = None, slots: int | None = None
) -> Frames:
    """A frame after each step, for a `Player`; of a long run only every second, third, … step, and the last."""
    options = {"budget": budget, "slots": slots}
    last = render_step_timeline(traces, by_time=by_time, budget=budget, slots=slots)
    steps = frame_steps(len(traces), len(last))
    frames = [render_step_timeline(traces, step, by_time=by_time, **options) for step in steps[:-1]]
    return Frames([*frames, last], [sentence(traces[step - 1]) for step in steps])


@dataclass
class _Layout:
    lanes: dict[str, list[Event | None]]
    labels: dict[str, str]
    columns: list[tuple[float, float]]
    """Left and right edge of each step."""
    lane_height: float
    font: float
    begin: float
    end: float
    """Seconds at the left and the right edge of the plot."""
    plot: float
    """Width of the plot."""
    width: float
    height: float
    bars_top: float
    legend_top: float
    legend: list[list[tuple[float, Event, str]]]
    most: int
    """Tokens at the top of the bars."""
    titles: bool

    def at(self, seconds: float) -> float:
        """x of a moment."""
        return _LEFT + (min(max(seconds, self.begin), self.end) - self.begin) / (self.end - self.begin) * self.plot


def _layout(
    traces: Sequence[StepTrace], by_time: bool, budget: int | None, slots: int | None, until: float | None
) -> _Layout:
    found = lanes(traces)
    if len(found) > MAX_LANES:
        raise UsageError(
            f"{len(found)} requests are more than the {MAX_LANES} lanes of one picture: give a part of the traces, or "
            "use lab.step_table"
        )
    begin = min([traces[0].time, *(time for _, time in arrivals(traces).values())])
    end = max(traces[-1].time + traces[-1].duration, -math.inf if until is None else until)
    if by_time and end <= begin:
        raise UsageError("by_time=True needs a clock that moved, and these traces all have one time: leave it out")
    count = len(traces)
    step = min(46.0, max(2.2, (WIDTH - _LEFT - 16) / count))
    plot = WIDTH - _LEFT - 16 if by_time else max(step * count, 240)
    lane_height = 24 if len(found) <= 16 else 16 if len(found) <= 32 else 11
    bars_top = _TOP + lane_height * len(found) + _GAP
    legend_top = bars_top + _BARS + 8 + (20 if slots is not None else 0)
    width = _LEFT + plot + 16
    drawn = [event for row in found.values() for event in row]
    if by_time and any(
        (traces[index].time - due) / (end - begin) * plot >= _LEAST_WAIT
        for index, due in arrivals(traces).values()
        if index < count
    ):
        drawn.append(Event("waiting"))
    legend = legend_rows(legend_entries(drawn), width - 16)
    plan = _Layout(
        lanes=found,
        labels=labels(found, 14),
        columns=[(_LEFT + step * index, _LEFT + step * (index + 1)) for index in range(count)],
        lane_height=lane_height,
        font=min(FONT, lane_height - 1.5),
        begin=begin,
        end=end,
        plot=plot,
        width=width,
        height=legend_top + 18 * len(legend) + 6,
        bars_top=bars_top,
        legend_top=legend_top,
        legend=legend,
        most=max([1, budget or 0, *(_count(trace) for trace in traces)]),
        titles=sum(event is not None for row in found.values() for event in row) <= _MOST_TITLES,
    )
    if by_time:
        plan.columns = [(plan.at(trace.time), plan.at(trace.time + trace.duration)) for trace in traces]
    return plan


def _count(trace: StepTrace) -> int:
    return sum(item["num_tokens"] for item in trace.scheduled)


def _axis(canvas: Canvas, plan: _Layout, traces: Sequence[StepTrace], by_time: bool) -> None:
    canvas.text(_LEFT - 8, 14, "time" if by_time else "step", FONT, "end", bold=True)
    bottom = plan.bars_top + _BARS
    if by_time:
        for seconds, text in _ticks(plan.end - plan.begin):
            x = plan.at(plan.begin + seconds)
            at_the_edge = x + text_width(text, FONT - 1) / 2 > _LEFT + plan.plot
            canvas.text(x, 14, text, FONT - 1, "end" if at_the_edge else "middle" if seconds else "start")
            canvas.lines(f"M{x:.1f} {_TOP - 6}V{bottom:.1f}", 0.5, opacity=0.25)
    else:
        widest = max(text_width(str(trace.step), FONT - 1) for trace in traces) + 6
        every = next(
            n for n in (1, 2, 5, 10, 20, 50, 100, 200) if n * (plan.columns[0][1] - plan.columns[0][0]) >= widest
        )
        for index, trace in enumerate(traces):
            if index % every == 0:
                left, right = plan.columns[index]
                canvas.text((left + right) / 2, 14, str(trace.step), FONT - 1, "middle")
    for lane in range(len(plan.lanes) + 1):
        canvas.lines(f"M{_LEFT} {_TOP + lane * plan.lane_height:.1f}h{plan.plot:.1f}", 0.5, opacity=0.25)


def _ticks(span: float) -> list[tuple[float, str]]:
    """Round moments from 0 on, at most nine, and their labels in one unit."""
    factor, unit = next((f, u) for f, u in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if span * f >= 1 or u == "µs")
    power = 10.0 ** math.floor(math.log10(span / 8))
    step = next(times * power for times in (1, 2, 5, 10, 20) if times * power >= span / 8 * (1 - 1e-9))
    count = math.floor(span / step * (1 + 1e-9))
    return [(n * step, f"{n * step * factor:.6g} {unit}" if n else "0") for n in range(count + 1)]


def _tokens(canvas: Canvas, plan: _Layout, traces: Sequence[StepTrace], budget: int | None) -> None:
    """A bar for each step, its kinds stacked, and the budget as a line."""
    bottom = plan.bars_top + _BARS
    scale = (_BARS - 10) / plan.most
    canvas.text(_LEFT - 8, bottom - 18, "tokens", FONT, "end", bold=True)
    canvas.text(_LEFT - 8, bottom - 5, f"(top: {plan.most})", FONT - 2, "end")
    canvas.lines(f"M{_LEFT} {bottom:.1f}h{plan.plot:.1f}", 0.8)
    for index, trace in enumerate(traces):
        left, right = plan.columns[index]
        y = bottom
        total = _count(trace)
        canvas.open(f"step {trace.step}: {total} tokens" if plan.titles else "", bar=trace.step, total=total)
        for kind in ("decode", "prefill", "recompute"):
            height = sum(item["num_tokens"] for item in trace.scheduled if item["kind"] == kind) * scale
            if height:
                y -= height
                canvas.rect(left + 0.5, y, max(right - left - 1, 0.5), height, kind, 0.5 if right - left > 4 else 0)
        if total and text_width(str(total), FONT - 2) <= right - left:
            canvas.text((left + right) / 2, y - 2, str(total), FONT - 2, "middle")
        canvas.close()
    if budget is not None:
        y = bottom - budget * scale
        canvas.open(budget=budget)
        canvas.lines(f"M{_LEFT} {number(y)}h{plan.plot:.1f}", 1.2, "6 3")
        canvas.text(_LEFT + plan.plot, y - 2, f"budget {budget}", FONT - 2, "end")
        canvas.close()


def _idle(canvas: Canvas, plan: _Layout, traces: Sequence[StepTrace], slots: int) -> None:
    y = plan.bars_top + _BARS + 6
    canvas.text(_LEFT - 8, y + 11, f"idle of {slots} slots", FONT - 1, "end")
    for index, trace in enumerate(traces):
        idle = slots - len(trace.scheduled)
        left, right = plan.columns[index]
        canvas.open(f"step {trace.step}: {idle} idle slots" if plan.titles else "", idle=idle)
        if idle > 0:
            canvas.rect(left + 0.5, y, max(right - left - 1, 0.5), 14, "quiet", 0.3)
        if text_width(str(idle), FONT - 1) <= right - left:
            canvas.text((left + right) / 2, y + 11, str(idle), FONT - 1, "middle")
        canvas.close()
