"""How one event of a request is drawn, the legend of what is drawn, and the limits of size that pictures share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.lab.story import LETTERS, Event
from workbench.lab.svg.canvas import FONT, Canvas, text_width

MAX_FRAMES = 150
MAX_FRAMES_BYTES = 12_000_000
WIDTH = 960
"""Width a picture aims at, in pixels."""
_WORDS = {
    "prefill": "prefill: prompt tokens computed",
    "decode": "decode: one token",
    "recompute": "recompute: again after a preemption",
    "preempted": "preempted: blocks taken away",
    "waiting": "waiting",
    "held": "held: answer complete, seat kept until the batch is done",
    "ended": "",
}
_TALL = {"decode": 0.6, "held": 0.6}
"""Height of a cell by kind, as a share of its lane: where there is no room for letters, shapes speak."""


class Frames(tuple[str, ...]):
    """Pictures of one run in order, with ``labels``: for each frame a text that says the same."""

    labels: tuple[str, ...]

    def __new__(cls, frames: Iterable[str], labels: Iterable[str]) -> Frames:
        made = super().__new__(cls, frames)
        made.labels = tuple(labels)
        if len(made) != len(made.labels):
            raise ValueError(f"{len(made)} frames and {len(made.labels)} labels: one label for each frame")
        return made


def frame_steps(count: int, largest: int) -> list[int]:
    """Of ``count`` steps those after which a frame is drawn, the last one always; ``largest``: bytes of a frame."""
    most = max(2, min(MAX_FRAMES, MAX_FRAMES_BYTES // max(largest, 1)))
    stride = -(-count // most)
    return sorted({*range(stride, count + 1, stride), count})


def draw_event(canvas: Canvas, event: Event, x: float, y: float, width: float, height: float) -> None:
    """One event in its lane; letters where they fit."""
    inner = height * _TALL.get(event.kind, 1.0)
    top = y + (height - inner) / 2
    right, middle, line = x + width, y + height / 2, 0.5 if width > 4 else 0.0
    if event.kind == "waiting":
        canvas.lines(f"M{x:.1f} {middle:.1f}H{right:.1f}", 1, "2 2", 0.7)
    elif event.kind == "held":
        canvas.rect(x, top, width, inner, "", 0.8)  # an empty seat: the frame of a decode without its colour
    elif event.kind != "ended":
        canvas.rect(x, top, width, inner, event.tone, line)
    size = min(FONT, height * 0.75)
    fitting = [text for text in (event.sign, LETTERS[event.kind]) if text and text_width(text, size) <= width - 2]
    if event.kind == "recompute":
        # A line through the cell, or across its corner where it would strike through the letters.
        across = min(7.0, width) if fitting else width
        canvas.lines(f"M{x:.1f} {y + (7 if fitting else height):.1f}L{x + across:.1f} {y:.1f}", 0.8)
    if event.kind == "preempted":
        canvas.lines(f"M{x:.1f} {y:.1f}L{right:.1f} {y + height:.1f}M{x:.1f} {y + height:.1f}L{right:.1f} {y:.1f}", 0.8)
    if event.ended:
        canvas.lines(f"M{right - 1:.1f} {y:.1f}V{y + height:.1f}", 2.5, opacity=1)
    if fitting and event.kind not in ("waiting", "preempted"):
        canvas.text(x + width / 2, middle + size * 0.36, fitting[0], size, "middle")
    elif event.new_token and event.kind != "decode":
        dot = min(2.0, width / 2)
        canvas.solid(f"M{right - dot:.1f} {y:.1f}v{2 * dot:.1f}h{-dot:.1f}v{-2 * dot:.1f}z")


def legend_entries(found: Iterable[Event | None]) -> list[tuple[Event, str]]:
    """A sample and its words for each sign that occurs."""
    seen = [event for event in found if event is not None]
    kinds = {event.kind for event in seen}
    entries = [(Event(kind), f"{LETTERS[kind]} {words}") for kind, words in _WORDS.items() if kind in kinds and words]
    if any(event.new_token and event.kind != "decode" for event in seen):
        entries.append((Event("ended", new_token=True), "* new token at the end of a prefill or recompute"))
    if any(event.ended for event in seen):
        entries.append((Event("ended", ended="stop"), "! finished"))
    return entries


def legend_rows(entries: Sequence[tuple[Event, str]], width: float) -> list[list[tuple[float, Event, str]]]:
    """The legend broken into rows: where each entry begins, its sample and its words."""
    rows: list[list[tuple[float, Event, str]]] = [[]]
    x = 0.0
    for event, words in entries:
        needed = 24 + text_width(words, FONT - 1) + 14
        if rows[-1] and x + needed > width:
            rows.append([])
            x = 0.0
        rows[-1].append((x, event, words))
        x += needed
    return rows


def draw_legend(canvas: Canvas, rows: Sequence[Sequence[tuple[float, Event, str]]], x: float, y: float) -> None:
    """Rows 18 pixels high from ``y`` on."""
    canvas.open(part="legend")
    for number, row in enumerate(rows):
        for left, event, words in row:
            # A sample is too narrow for its letter: the shape is explained, the words name the letter.
            draw_event(canvas, event, x + left, y + 18 * number + 2, 7, 12)
            canvas.text(x + left + 13, y + 18 * number + 12, words, FONT - 1)
    canvas.close()
