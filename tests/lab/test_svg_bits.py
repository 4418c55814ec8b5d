"""The picture of a number's bits: a row for each format, fields as wide as they are, and a table that says the same."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from workbench.errors import UsageError
from workbench.lab import bits_table, control, drive, explore, keep, render_bits, tick_plot
from workbench.lab.number_views import SHOWN
from workbench.quant.formats import FORMATS, FloatFormat

SVG = "{http://www.w3.org/2000/svg}"


def fields(x: float) -> dict[str, list[tuple[str, str]]]:
    """Of each format the letters of its fields and their bits."""
    found = {}
    for row in ET.fromstring(render_bits(x)).iter(f"{SVG}g"):
        if name := row.get("data-format"):
            parts = [(one.get("data-field", ""), one.get("data-bits", "")) for one in row.iter(f"{SVG}g")]
            found[name] = [part for part in parts if part[0]]
    return found


@pytest.mark.parametrize("x", [7.6, -1000.0, 0.0, 2.0**-24, -3e38])
def test_every_bit_stands_in_its_field(x: float) -> None:
    found = fields(x)
    assert list(found) == list(SHOWN)
    for name, parts in found.items():
        format = FORMATS[name]
        assert "".join(bits for _, bits in parts) == f"{keep(x, name).code:0{format.bits}b}"
        assert [letter for letter, _ in parts] == (list("SEM") if isinstance(format, FloatFormat) else list("SW"))
        if isinstance(format, FloatFormat):
            assert [len(bits) for _, bits in parts] == [1, format.exponent_bits, format.mantissa_bits]


def test_each_bit_is_drawn_once_and_inside_the_picture() -> None:
    root = ET.fromstring(render_bits(7.6))
    boxes = [box for group in root.iter(f"{SVG}g") if group.get("data-field") for box in group.iter(f"{SVG}rect")]
    assert len(boxes) == sum(FORMATS[name].bits for name in SHOWN)
    width = float(root.get("width", 0))
    assert all(float(box.get("x", 0)) + float(box.get("width", 0)) < width for box in boxes)


def test_the_table_says_the_same() -> None:
    rows = {str(row[0]): [str(cell) for cell in row[1:]] for row in bits_table(7.6).rows}
    assert rows["FP8 E4M3"] == ["0 1001 111", "+(1 + 7/8) · 2^2", "7.5, rounded, off by 0.1"]
    assert rows["INT4"] == ["0 111", "whole number", "7, clamped, off by 0.6"]
    assert rows["FP8 E4M3"][2] in render_bits(7.6)


def test_sliders_reach_every_picture() -> None:
    def picture(power: int, eighths: int, negative: bool) -> str:
        return render_bits((-1 if negative else 1) * (1 + eighths / 8) * 2.0**power)

    controls = {
        "power": control("power of two", low=-26, high=20, default=2),
        "eighths": control("mantissa, eighths", low=0, high=7, default=7),
        "negative": control("negative", default=False),
    }
    assert drive(explore(picture, controls, height=360)) == 47 + 8 + 2


def test_ticks_stand_where_numbers_lie() -> None:
    figure = tick_plot({"one": [0.0, 1.0], "two": [-1.0, 0.5, 1.0]}, "where", "title")
    [axes] = figure.axes
    drawn = [[segment[0][0] for segment in lines.get_segments()] for lines in axes.collections]
    assert drawn == [[0.0, 1.0], [-1.0, 0.5, 1.0]] and axes.get_xlabel() == "where"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]
    with pytest.raises(UsageError, match="at least 1 row"):
        tick_plot({}, "where")
