"""One number in every format: its bits by field, how they are read, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.lab.number_views import SHOWN, Kept, bit_fields, formula, keep, label, told
from workbench.lab.svg.canvas import Canvas, text_width
from workbench.lab.svg.cells import WIDTH
from workbench.lab.table import Table
from workbench.quant.formats import FloatFormat, format_named

_LEFT, _TOP, _ROW, _HIGH = 84.0, 66.0, 30.0, 20.0
_CELL, _GAP = 13.0, 4.0
_FIELDS = (("alert", "S", "sign"), ("decode", "E", "exponent"), ("prefill", "M", "mantissa"))
_WHOLE = (_FIELDS[0], ("recompute", "W", "whole number, in two's complement"))


def render_bits(x: float, names: Sequence[str] = SHOWN) -> str:
    """A row for each format: bits, their reading where they are a float's, and what ``x`` has become."""
    canvas, rows = Canvas(WIDTH, _TOP + _ROW * len(names) + 6), [_row(x, name) for name in names]
    canvas.text(8, 22, f"{x:,.8g} in {len(names)} formats", 14, bold=True)
    _legend(canvas)
    for number, row in enumerate(rows):
        _draw_row(canvas, row, _TOP + _ROW * number)
    return canvas.svg(f"{x:,.8g} in {len(names)} formats", "; ".join(row.words for row in rows))


def bits_table(x: float, names: Sequence[str] = SHOWN) -> Table:
    """The same as a table."""
    rows = [[label(row.name), " ".join(row.bits), row.reading, row.became] for row in (_row(x, name) for name in names)]
    return Table([f"{x:,.8g}", "bits", "read as", "what became of it"], rows)


class _Row(NamedTuple):
    name: str
    kept: Kept
    bits: tuple[str, ...]
    reading: str

    @property
    def became(self) -> str:
        return f"{self.kept.number:,.8g}, {told(self.kept)}"

    @property
    def words(self) -> str:
        return f"{label(self.name)}: {' '.join(self.bits)}, {self.became}"


def _row(x: float, name: str) -> _Row:
    format, kept = format_named(name), keep(x, name)
    reading = formula(kept.code, format) if isinstance(format, FloatFormat) else "whole number"
    return _Row(name, kept, bit_fields(kept.code, format), reading)


def _draw_row(canvas: Canvas, row: _Row, y: float) -> None:
    format = format_named(row.name)
    canvas.open(row.words, format=row.name, what=row.kept.what)
    canvas.text(8, y + _HIGH - 5, label(row.name), 12, bold=True)
    left = _LEFT
    kinds = _FIELDS if isinstance(format, FloatFormat) else _WHOLE
    for (tone, letter, _), bits in zip(kinds, row.bits, strict=True):
        canvas.open(field=letter, bits=bits)
        for bit in bits:
            canvas.rect(left, y, _CELL, _HIGH, tone, 0.5)
            canvas.text(left + _CELL / 2, y + _HIGH - 6, bit, 11, "middle")
            left += _CELL
        canvas.close()
        left += _GAP
    reading = f"{row.reading} = " if format.bits < 32 else ""
    canvas.text(left + 10, y + _HIGH - 5, reading + row.became, 12)
    canvas.close()


def _legend(canvas: Canvas) -> None:
    left = 8.0
    for tone, letter, words in (*_FIELDS, _WHOLE[1]):
        canvas.rect(left, 36, _CELL, 16, tone, 0.5)
        canvas.text(left + _CELL / 2, 48, letter, 10, "middle")
        canvas.text(left + _CELL + 5, 48, words, 11)
        left += _CELL + 5 + text_width(words) + 18
