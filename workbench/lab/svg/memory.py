"""The KV memory map: a row a block, a column a step; who held it, what was cached, what was given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.pool_history import CACHED, FREE, SHARED, USED, PoolHistory, Square
from workbench.lab.snapshot import PoolSnapshot, check_steps
from workbench.lab.svg.canvas import FONT, Canvas, labels, text_width
from workbench.lab.svg.cells import WIDTH, Frames, frame_steps

_LEFT, _TOP = 64.0, 62.0
_HEIGHT, _TALLEST, _WIDEST = 400.0, 18.0, 44.0
"""Pixels of the map at most, of a row and of a column."""
_LEGEND = (
    (USED, "plain colour: in use by one request, named where there is room"),
    (SHARED, "a line through it: shared by several requests"),
    (CACHED, "grey with dots: cached, nobody holds it"),
    (FREE, "empty: free"),
    ("x", "×: given up in this step to make room"),
)


def render_memory_map(traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot], upto: int | None = None) -> str:
    """SVG of the whole run; the column of step number ``upto``, at least 1 (the last unless said), stands out.

    Raises UsageError as `PoolHistory`, and for an ``upto`` outside the run.
    """
    shown = check_steps(traces, upto)
    if shown == 0:
        raise UsageError("upto=0: the pool stands after a step, so the least is 1")
    history = PoolHistory(traces, snapshots)
    return _frame(history, _map(history), shown - 1)


def memory_map_frames(traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot]) -> Frames:
    """A frame for each step, for a `Player`; of a long run only every second, third, … step, and the last."""
    history = PoolHistory(traces, snapshots)
    body = _map(history)
    steps = frame_steps(len(traces), len(_frame(history, body, len(traces) - 1)))
    return Frames([_frame(history, body, step - 1) for step in steps], [history.label(step - 1) for step in steps])


def _frame(history: PoolHistory, body: Sequence[str], at: int) -> str:
    """The map with the column ``at`` marked and told."""
    width, height = _size(history)
    bottom = _TOP + height * history.num_rows
    canvas = Canvas(WIDTH, bottom + 22 + 18 * 3 + 8)
    canvas.text(8, 16, history.told(at), FONT + 1, bold=True)
    canvas.text(8, 33, history.rule, FONT)
    canvas.add(body)
    x = _LEFT + width * at
    canvas.open(f"step {history.traces[at].step}", step=history.traces[at].step)
    canvas.rect(x - 1, _TOP - 3, width + 2, bottom - _TOP + 6, "", 2)
    canvas.solid(f"M{x + width / 2:.1f} {_TOP - 4:.1f}l-5 -8h10z")
    canvas.close()
    return canvas.svg("KV memory map", f"{history.label(at)}. {history.rule}.")


def _size(history: PoolHistory) -> tuple[float, float]:
    """Width and height of a square."""
    columns = len(history.columns)
    return min(_WIDEST, (WIDTH - _LEFT - 16) / columns), min(_TALLEST, _HEIGHT / history.num_rows)


def _map(history: PoolHistory) -> list[str]:
    """What all frames have in common."""
    width, height = _size(history)
    bottom, right = _TOP + height * history.num_rows, _LEFT + width * len(history.columns)
    tones = {owner: f"owner{at % 4}" for at, owner in enumerate(history.owners)}
    short = labels(history.owners, 12)
    canvas = Canvas(WIDTH, bottom)
    canvas.text(_LEFT - 8, _TOP - 8, "block", FONT - 1, "end", bold=True)
    every = _stride(history.num_rows, height, 12.0)
    for row in range(history.num_rows):
        y = _TOP + height * row
        if row % every == 0:
            canvas.text(_LEFT - 6, y + height / 2 + 3.5, history.row_name(row), FONT - 2, "end")
        runs = list(_runs([column[row] for column in history.columns]))
        told = " ".join(f"{square.state.replace(' ', '-')}:{square.owner}*{end - begin}" for square, begin, end in runs)
        canvas.open(f"blocks {history.row_name(row)}", row=row, runs=told)
        paths: dict[str, str] = {}
        for square, begin, end in runs:
            x, long = _LEFT + width * begin, width * (end - begin)
            if square.state == FREE:
                continue
            tone = "quiet" if square.state == CACHED else tones[square.owner]
            paths[tone] = paths.get(tone, "") + f"M{x:.1f} {y + 0.4:.1f}h{long:.1f}v{height - 0.8:.1f}h{-long:.1f}z"
            paths[square.state] = paths.get(square.state, "") + f"M{x + 1:.1f} {y + height / 2:.1f}h{long - 1.5:.1f}"
        for tone, path in paths.items():
            if tone == CACHED:
                canvas.lines(path, min(1.6, height / 3), "1.6 3.4", 0.55)
            elif tone == SHARED:
                canvas.lines(path, min(1.4, height / 3), opacity=0.9)
            elif tone != USED:
                canvas.solid(path, tone)
        for square, begin, end in runs:
            name = short.get(square.owner, "")
            size = min(FONT - 1, height * 0.8)
            begin += row in history.evicted[begin]  # where the cross stands is no room for a name
            if size >= 7 and square.state == USED and text_width(name, size) < width * (end - begin) - 3:
                canvas.text(_LEFT + width * begin + 2.5, y + height / 2 + size * 0.36, name, size)
        canvas.close()
    _draw_evictions(canvas, history, width, height)
    canvas.lines(f"M{_LEFT} {_TOP}V{bottom:.1f}H{right:.1f}V{_TOP}z", 0.7)
    every = _stride(len(history.columns), width, 30.0)
    for at, trace in enumerate(history.traces):
        if at % every == 0:
            canvas.text(_LEFT + width * (at + 0.5), bottom + 13, str(trace.step), FONT - 2, "middle")
    canvas.text(_LEFT - 8, bottom + 13, "step", FONT - 1, "end", bold=True)
    _legend(canvas, bottom + 24)
    return canvas.parts


def _draw_evictions(canvas: Canvas, history: PoolHistory, width: float, height: float) -> None:
    arm = max(1.6, min(4.0, width / 2 - 0.5, height / 2 - 0.5))
    for at, gone in enumerate(history.evicted):
        for row, blocks in gone.items():
            x, y = _LEFT + width * (at + 0.5), _TOP + height * (row + 0.5)
            canvas.open(f"given up: {' '.join(map(str, blocks))}", evicted=" ".join(map(str, blocks)), at=at)
            x, y, long = x - arm, y - arm, 2 * arm
            canvas.lines(f"M{x:.1f} {y:.1f}l{long:.1f} {long:.1f}m0 {-long:.1f}l{-long:.1f} {long:.1f}", 1.3, opacity=1)
            canvas.close()


def _legend(canvas: Canvas, y: float) -> None:
    canvas.open(part="legend")
    for at, (kind, words) in enumerate(_LEGEND):
        x, top = 8 + (at % 2) * 480.0, y + 18 * (at // 2)
        if kind != "x":
            canvas.rect(x, top, 16, 12, {USED: "owner0", SHARED: "owner0", CACHED: "quiet"}.get(kind, ""), 0.6)
        if kind == SHARED:
            canvas.lines(f"M{x} {top + 6}h16", 1.4, opacity=0.9)
        if kind == CACHED:
            canvas.lines(f"M{x + 1} {top + 6}h15", 1.6, "1.6 3.4", 0.55)
        if kind == "x":
            canvas.lines(f"M{x + 4} {top + 2}l8 8m0 -8l-8 8", 1.3, opacity=1)
        canvas.text(x + 22, top + 10, words, FONT - 1)
    canvas.close()


def _runs(squares: Sequence[Square]) -> Iterator[tuple[Square, int, int]]:
    """Equal neighbours together: square, first step, step after the last."""
    begin = 0
    for at in range(1, len(squares) + 1):
        if at == len(squares) or squares[at] != squares[begin]:
            yield squares[begin], begin, at
            begin = at


def _stride(count: int, size: float, room: float) -> int:
    """Every how many-th of ``count`` places of ``size`` pixels has a label that needs ``room``."""
    return next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200, count) if step * size >= room or step >= count)
