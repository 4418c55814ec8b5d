"""Canvas: shapes and texts that become one SVG, readable in a light and in a dark page and by a screen reader."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from workbench.lab.table import TONES, columns

FONT = 11
_CHARACTER = 0.56
"""Width of a character by the size of its font; a wide one (Hangul) takes two. Generous: fonts differ."""
_INK = "var(--jp-ui-font-color1, inherit)"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Canvas:
    """``width`` and ``height`` in pixels at full size; a narrower page scales the picture down."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    @property
    def parts(self) -> list[str]:
        """What was drawn so far, to be drawn again elsewhere (`add`)."""
        return list(self._parts)

    def add(self, parts: Iterable[str]) -> None:
        """Draws what another canvas of the same scale drew."""
        self._parts.extend(parts)

    def rect(self, x: float, y: float, width: float, height: float, tone: str = "", line: float = 0.6) -> None:
        """``tone``: a key of `TONES`; ``line``: width of the border, 0 for none."""
        fill = TONES[tone] if tone else "none"
        stroke = f' stroke="currentColor" stroke-opacity="0.6" stroke-width="{number(line)}"' if line else ""
        self._parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'fill="{fill}"{stroke}/>'
        )

    def lines(self, path: str, line: float = 1.0, dashes: str = "", opacity: float = 0.8) -> None:
        """``path``: an SVG path such as ``M0 0H9``."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="{opacity}" '
            f'stroke-width="{number(line)}"{dashed}/>'
        )

    def solid(self, path: str, tone: str = "") -> None:
        """A filled shape: in the colour of the text, or with a ``tone``, a key of `TONES`."""
        self._parts.append(f'<path d="{path}" fill="{TONES[tone] if tone else "currentColor"}"/>')

    def text(
        self, x: float, y: float, text: str, size: float = FONT, anchor: str = "start", bold: bool = False
    ) -> None:
        """``y`` is the line the letters stand on; ``anchor``: ``start``, ``middle`` or ``end``."""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}"{where}{weight}>{clean(text)}</text>'
        )

    def open(self, title: str = "", **data: str | int) -> None:
        """Begins a group; ``data`` says what it stands for, ``title`` says it to a reader who points at it."""
        marks = "".join(f' data-{name}="{clean(str(value))}"' for name, value in data.items())
        self._parts.append(f"<g{marks}>" + (f"<title>{clean(title)}</title>" if title else ""))

    def close(self) -> None:
        self._parts.append("</g>")

    def svg(self, title: str, description: str) -> str:
        width, height = number(self.width), number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" fill="currentColor" '
            f'style="max-width:100%;height:auto;color:{_INK};font-family:var(--jp-ui-font-family, sans-serif)">'
            f"<title>{clean(title)}</title><desc>{clean(description)}</desc>{''.join(self._parts)}</svg>"
        )


def clean(text: str) -> str:
    """As XML may hold it, in an element or between quotes."""
    return escape(_NOT_XML.sub("�", text), quote=True)


def number(value: float) -> str:
    """At most two decimals: a picture of thousands of shapes stays small."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float = FONT) -> float:
    """About how many pixels a text takes."""
    return columns(text) * size * _CHARACTER


def labels(names: Iterable[str], limit: int) -> dict[str, str]:
    """A label of at most ``limit`` columns for each name, no two alike: the name, its head and tail, or its number."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for index, name in enumerate(dict.fromkeys(names)):
        choices = [name, *([f"{name[: limit // 2]}…{name[-(limit - limit // 2 - 1) :]}"] if limit > 4 else [])]
        label = next((text for text in choices if columns(text) <= limit and text not in taken), f"#{index}")
        taken.add(label)
        found[name] = label
    return found


def duration(seconds: float) -> str:
    """With a unit that fits: ``3.21 ms``."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError("the last unit fits everything")
