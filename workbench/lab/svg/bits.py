"""One number in every format: its bits by field, how they are read, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.lab.number_views import SHOWN, bit_fields, formula, keep, label, told
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
    canvas = Canvas(WIDTH, _TOP + _ROW * len(names) + 6)
    canvas.text(8, 22, f"{x:,.8g} in {len(names)} formats", 14, bold=True)
    _legend(canvas)
    for row, name in enumerate(names):
        _draw_row(canvas, x, name, _TOP + _ROW * row)
    return canvas.svg(f"{x:,.8g} in {len(names)} formats", "; ".join(_words(x, name) for name in names))


def bits_table(x: float, names: Sequence[str] = SHOWN) -> Table:
    """The same as a table."""
    rows = [[label(name), " ".join(_bits(x, name)), _reading(x, name), _became(x, name)] for name in names]
    return Table([f"{x:,.8g}", "bits", "read as", "what became of it"], rows)


def _draw_row(canvas: Canvas, x: float, name: str, y: float) -> None:
    kinds = _FIELDS if isinstance(format_named(name), FloatFormat) else _WHOLE
    canvas.open(_words(x, name), format=name, what=keep(x, name).what)
    canvas.text(8, y + _HIGH - 5, label(name), 12, bold=True)
    left = _LEFT
    for (tone, letter, _), bits in zip(kinds, _bits(x, name), strict=True):
        canvas.open(field=letter, bits=bits)
        for bit in bits:
            canvas.rect(left, y, _CELL, _HIGH, tone, 0.5)
            canvas.text(left + _CELL / 2, y + _HIGH - 6, bit, 11, "middle")
            left += _CELL
        canvas.close()
        left += _GAP
    reading = f"{_reading(x, name)} = " if format_named(name).bits < 32 else ""
    canvas.text(left + 10, y + _HIGH - 5, reading + _became(x, name), 12)
    canvas.close()


def _legend(canvas: Canvas) -> None:
    left = 8.0
    for tone, letter, words in (*_FIELDS, _WHOLE[1]):
        canvas.rect(left, 36, _CELL, 16, tone, 0.5)
        canvas.text(left + _CELL / 2, 48, letter, 10, "middle")
        canvas.text(left + _CELL + 5, 48, words, 11)
        left += _CELL + 5 + text_width(words) + 18


def _bits(x: float, name: str) -> tuple[str, ...]:
    return bit_fields(keep(x, name).code, format_named(name))


def _reading(x: float, name: str) -> str:
    format, code = format_named(name), keep(x, name).code
    return formula(code, format) if isinstance(format, FloatFormat) else "whole number"


def _became(x: float, name: str) -> str:
    kept = keep(x, name)
    return f"{kept.number:,.8g}, {told(kept)}"


def _words(x: float, name: str) -> str:
    return f"{label(name)}: {' '.join(_bits(x, name))}, {_became(x, name)}"
