"""Fills that tell things apart without colour: slanted lines, crossed lines, dots. Drawn as paths, because a pattern
with an id would be looked up in another picture of the same page."""

from __future__ import annotations

from workbench.lab.svg.canvas import Canvas


def slanted(canvas: Canvas, x: float, y: float, width: float, height: float, gap: float = 7) -> None:
    """Lines from lower left to upper right."""
    canvas.lines(_slants(x, y, width, height, gap), 0.8, opacity=0.35)


def crossed(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
    """One large X from corner to corner."""
    canvas.lines(f"M{x:.1f} {y:.1f}l{width:.1f} {height:.1f}m0 {-height:.1f}l{-width:.1f} {height:.1f}", 0.8)


def dotted(canvas: Canvas, x: float, y: float, width: float, height: float, gap: float = 6) -> None:
    """Rows of dots."""
    rows = range(int((height - 2) // gap) + 1)
    lines = "".join(f"M{x + 2:.1f} {y + 2 + gap * row:.1f}h{width - 3:.1f}" for row in rows)
    canvas.lines(lines, 1.2, f"1.2 {gap - 1.2:.1f}", 0.4)


def _slants(x: float, y: float, width: float, height: float, gap: float) -> str:
    path, at = [], gap / 2
    while at < width + height:
        # The line x - left + y - top = at, as far as it lies within the box.
        right, top = min(at, width), max(at - width, 0.0)
        left, bottom = max(at - height, 0.0), min(at, height)
        path.append(f"M{x + left:.1f} {y + bottom:.1f}L{x + right:.1f} {y + top:.1f}")
        at += gap
    return "".join(path)
