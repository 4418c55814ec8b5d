"""Table: one thing to show, as HTML in a notebook and as text everywhere else.

A table and not a drawing, because it survives where notebooks are read without a kernel, can be read aloud and copied,
and follows the theme of the page. Colour only repeats what the text of a cell says.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

# Translucent, so that the page's own text colour stays readable on them in a light and in a dark theme. The hues are
# those of Okabe and Ito, which colour-blind readers can tell apart.
TONES = {
    "prefill": "rgba(86,180,233,0.40)",
    "decode": "rgba(0,158,115,0.40)",
    "recompute": "rgba(230,159,0,0.45)",
    "alert": "rgba(213,94,0,0.45)",
    "quiet": "rgba(128,128,128,0.15)",
    "owner0": "rgba(86,180,233,0.40)",
    "owner1": "rgba(230,159,0,0.45)",
    "owner2": "rgba(0,158,115,0.40)",
    "owner3": "rgba(204,121,167,0.45)",
}
_CELL = "text-align:left;vertical-align:top;padding:3px 8px;border:1px solid rgba(128,128,128,0.45)"
_SHORT = 24
"""Characters up to which a text stays on one line."""


class Cell(NamedTuple):
    text: str
    tone: str = ""
    """A key of `TONES`, or nothing."""


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` hold cells, texts or numbers, as many as ``head`` has. Raises ValueError for a row of another length."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str | int]]
    caption: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise ValueError(f"row {number} has {len(row)} cells and the head has {len(self.head)}")

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in self.head)
        body = "\n".join(f"<tr>{''.join(_html(cell) for cell in row)}</tr>" for row in self.rows)
        # A paragraph, not a <caption>: readers of notebooks that strip styles would centre that in bold.
        note = f'\n<p style="margin:2px 0 0 2px">{escape(self.caption)}</p>' if self.caption else ""
        return (
            f'<table style="border-collapse:collapse;margin-left:0">\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table>{note}"
        )

    def __repr__(self) -> str:
        lines = [[str(name) for name in self.head], *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(columns(line[column]) for line in lines) for column in range(len(self.head))]
        text = [
            "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        text.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*text, *([self.caption] if self.caption else [])])


def _text(cell: Cell | str | int) -> str:
    return cell.text if isinstance(cell, Cell) else str(cell)


def _html(cell: Cell | str | int) -> str:
    text, tone = _text(cell), cell.tone if isinstance(cell, Cell) else ""
    colour = f";background-color:{TONES[tone]}" if tone else ""
    unbroken = ";white-space:nowrap" if len(text) <= _SHORT else ""
    return f'<td style="{_CELL}{colour}{unbroken}">{escape(text)}</td>'


def columns(text: str) -> int:
    """Columns of a terminal that a text takes; a Hangul syllable takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
