"""Tiles of attention, one after another: rows are tiles of queries, columns blocks of keys, a cell is a visit.

Drawn from the visits that a kernel's own loops made (`kernels.triton.visits`), passed as plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from workbench.errors import UsageError
from workbench.lab.svg.canvas import FONT, Canvas
from workbench.lab.svg.cells import Frames
from workbench.lab.svg.hatch import crossed, dotted, slanted
from workbench.lab.table import Cell, Table

_LEFT, _TOP, _SIDE = 150.0, 56.0, 300.0
_WIDTH = 760.0
_LEGEND = (
    ("decode", "whole: every query sees every key, no mask"),
    ("recompute", "edge: computed whole, then masked"),
    ("quiet", "skipped: neither read nor computed"),
    ("", "not visited yet"),
)


class TileVisit(Protocol):
    """One tile of queries meets one block of keys; positions of the first and last query, keys ``[start, stop)``."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def masked(self) -> bool: ...


def tile_frames(visits: Sequence[TileVisit], num_keys: int, title: str = "tiles") -> Frames:
    """A frame before the first visit and one after each, with labels. ``visits``: of one KV head of one sequence.

    Raises UsageError without visits.
    """
    return Frames(
        (render_tiles(visits, num_keys, done, title) for done in range(len(visits) + 1)),
        (_told(visits, done) for done in range(len(visits) + 1)),
    )


def render_tiles(visits: Sequence[TileVisit], num_keys: int, done: int | None = None, title: str = "tiles") -> str:
    """The picture after the first ``done`` visits, all by default; when all are made, what is left was skipped."""
    tiles, blocks = _axes(visits, num_keys)
    done = len(visits) if done is None else done
    made = {(visit.first, visit.start): visit for visit in visits[:done]}
    now = visits[done - 1] if done else None
    # A tile that has made its last visit will skip the rest.
    pending = {visit.first for visit in visits[done:]}
    canvas = Canvas(_WIDTH, _TOP + _SIDE + 14)
    canvas.text(8, 16, f"{title}: {_told(visits, done)}", FONT + 1, bold=True)
    unit = _SIDE / num_keys
    canvas.text(_LEFT + _SIDE / 2, _TOP - 24, f"keys, in blocks of {blocks[0][1] - blocks[0][0]}", FONT, "middle")
    for start, _ in blocks:
        canvas.text(_LEFT + unit * start, _TOP - 6, str(start), FONT - 2)
    height = _SIDE / len(tiles)
    for row, (first, last) in enumerate(tiles):
        top = _TOP + height * row
        canvas.text(_LEFT - 8, top + height / 2 + 4, f"queries {first}–{last}", FONT - 1, "end")
        for start, stop in blocks:
            x, wide = _LEFT + unit * start, unit * (min(stop, num_keys) - start)
            visit = made.get((first, start))
            kind = ("edge" if visit.masked else "whole") if visit else "open" if first in pending else "skipped"
            canvas.open(f"queries {first} to {last}, keys {start} to {stop - 1}: {kind}", kind=kind)
            _draw(canvas, kind, x, top, wide, height)
            if now is not None and (now.first, now.start) == (first, start):
                canvas.lines(
                    f"M{x + 2:.1f} {top + 2:.1f}h{wide - 4:.1f}v{height - 4:.1f}h{4 - wide:.1f}z", 3, opacity=1
                )
            canvas.close()
    _legend(canvas, _LEFT + _SIDE + 28, _TOP + 8)
    return canvas.svg(title, f"{_told(visits, done)}. {_counted(visits[:done])}.")


def tile_table(visits: Sequence[TileVisit], num_keys: int, caption: str = "") -> Table:
    """The same as text: ``■`` whole, ``◩`` edge, ``·`` skipped."""
    tiles, blocks = _axes(visits, num_keys)
    made = {(visit.first, visit.start): visit for visit in visits}
    rows: list[list[Cell | str | int]] = []
    for first, last in tiles:
        row: list[Cell | str | int] = [f"{first}–{last}"]
        for start, _ in blocks:
            visit = made.get((first, start))
            row.append(Cell("◩", "recompute") if visit and visit.masked else Cell("■", "decode") if visit else "·")
        rows.append(row)
    words = f"■ whole, ◩ edge (masked), · skipped; {_counted(visits)}"
    return Table(["queries ∖ keys from", *(str(start) for start, _ in blocks)], rows, caption or words)


def _axes(visits: Sequence[TileVisit], num_keys: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tiles of queries from the first on, and all blocks of keys, visited or not."""
    if not visits:
        raise UsageError("no tile visited any block: there is nothing to draw")
    width = visits[0].stop - visits[0].start
    return sorted({(visit.first, visit.last) for visit in visits}), [
        (start, start + width) for start in range(0, num_keys, width)
    ]


def _told(visits: Sequence[TileVisit], done: int) -> str:
    if not done:
        return "nothing visited yet"
    now = visits[done - 1]
    kind = "an edge: masked" if now.masked else "whole: no mask"
    return f"visit {done} of {len(visits)}: queries {now.first}–{now.last}, keys {now.start}–{now.stop - 1}, {kind}"


def _counted(visits: Sequence[TileVisit]) -> str:
    masked = sum(visit.masked for visit in visits)
    return f"{len(visits)} visits, {len(visits) - masked} whole and {masked} at an edge"


def _draw(canvas: Canvas, kind: str, x: float, y: float, width: float, height: float) -> None:
    tone = {"whole": "decode", "edge": "recompute", "skipped": "quiet", "open": ""}[kind]
    canvas.rect(x, y, width, height, tone, 0.6)
    if kind == "whole":
        slanted(canvas, x, y, width, height)
    elif kind == "edge":
        dotted(canvas, x, y, width, height)
    elif kind == "skipped":
        crossed(canvas, x, y, width, height)


def _legend(canvas: Canvas, x: float, y: float) -> None:
    canvas.open(part="legend")
    for row, (tone, words) in enumerate(_LEGEND):
        top = y + 24 * row
        kind = {"decode": "whole", "recompute": "edge", "quiet": "skipped", "": "open"}[tone]
        _draw(canvas, kind, x, top, 18, 14)
        canvas.text(x + 26, top + 11, words, FONT - 1)
    canvas.text(x, y + 24 * len(_LEGEND) + 11, "strong frame: the visit just made", FONT - 1)
    canvas.close()
