"""What a GPU's memory holds: the weights, then one seat after another, each the keys and values of one request."""

from __future__ import annotations

from workbench.lab.svg.canvas import Canvas
from workbench.lab.svg.cells import WIDTH

_LEFT, _TOP, _BAR = 8.0, 46.0, 44.0
_WIDE = WIDTH - 2 * _LEFT
_NARROWEST = 3.0
"""Pixels of a seat that is still drawn by itself."""


def render_seats(memory_bytes: int, weight_bytes: int, room_bytes: int, seat_bytes: int, seats: int, title: str) -> str:
    """A bar of the whole memory as SVG: weights, seats, and what is left.

    ``room_bytes``: what keys and values may take; ``seat_bytes``: of one request, in whole blocks; ``seats``: how many
    of them the room holds.
    """
    canvas = Canvas(WIDTH, _TOP + _BAR + 62)
    canvas.text(_LEFT, 20, title, 13, bold=True)
    scale = _WIDE / memory_bytes
    weights, seat = min(weight_bytes * scale, _WIDE), seat_bytes * scale
    canvas.open("weights", part="weights")
    canvas.rect(_LEFT, _TOP, weights, _BAR, "quiet")
    canvas.close()
    canvas.open(f"{seats} seats", part="seats", count=seats)
    start = _LEFT + weights
    if seats and seat >= _NARROWEST:
        for number in range(seats):
            canvas.rect(start + number * seat, _TOP, seat, _BAR, "prefill")
    elif seats:
        canvas.rect(start, _TOP, seats * seat, _BAR, "prefill")
    canvas.close()
    canvas.rect(_LEFT, _TOP, _WIDE, _BAR)
    told = f"weights {weight_bytes / 2**30:,.1f} GiB" if room_bytes > 0 else "the weights do not fit"
    canvas.text(_LEFT, _TOP - 8, f"{told} of {memory_bytes / 2**30:,.0f} GiB")
    if room_bytes > 0:
        below = f"{seats:,} seats of {seat_bytes / 2**30:,.3g} GiB in {room_bytes / 2**30:,.1f} GiB for keys and values"
        canvas.text(_LEFT, _TOP + _BAR + 20, below, 12)
        if seats and seat < _NARROWEST:
            canvas.text(_LEFT, _TOP + _BAR + 40, "seats are too narrow to be drawn one by one", 11)
    return canvas.svg(title, f"{told}; {seats} seats")
