"""Right answers for the exercises of notebook 09, found in other ways, and the cases they are checked with."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
SHARES = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]


def rounded_by_midpoints(x: float, magnitudes: list[float]) -> float:
    """Counts the midpoints below |x|; one that |x| lies on counts where the number above it has an even place."""
    size, place = abs(Fraction(x)), 0
    for number, (low, high) in enumerate(pairwise(magnitudes)):
        middle = (Fraction(low) + Fraction(high)) / 2
        place += size > middle or (size == middle and number % 2 == 1)
    return -magnitudes[place] if x < 0 else magnitudes[place]


def clipped_by_squares(numbers: list[float], largest_code: int, shares: list[float]) -> float:
    """For each share all codes are tried for each number: the error of the best code is what rounding leaves."""
    reach = max(map(abs, numbers))
    errors = []
    for share in shares:
        scale = share * reach / largest_code
        codes = range(-largest_code, largest_code + 1)
        errors.append(sum(min((x - code * scale) ** 2 for code in codes) for x in numbers))
    return shares[errors.index(min(errors))]


def round_cases() -> list[Case]:
    draw, cases = Random("round-to-grid"), []

    def add(family: str, name: str, x: float, magnitudes: list[float], help_: str = "") -> None:
        cases.append(Case(family, name, fixed(x, magnitudes), rounded_by_midpoints, 0, 0, help_))

    for number in range(8):
        add("random", str(number), draw.uniform(-7, 7), E2M1)
    uneven = [0.0, *sorted(draw.uniform(0.1, 9) for _ in range(12))]
    for number in range(6):
        add("ragged", f"an uneven grid, {number}", draw.uniform(-10, 10), uneven)
    for low, high in pairwise(E2M1):
        middle = (low + high) / 2
        add("tie", f"{middle:g}", middle, E2M1, "halfway: the place in the list decides, not the number")
        add("tie", f"{-middle:g}", -middle, E2M1, "halfway, with a minus sign")
    for name, x in (("largest", 6.0), ("just beyond", 6.01), ("far", 1e9), ("far below", -1e9)):
        add("beyond", name, x, E2M1, "what lies beyond becomes the largest")
    for name, x in (("zero", 0.0), ("nearly nothing", 1e-30), ("nearly nothing below", -1e-30)):
        add("single", name, x, E2M1)
    return cases


def clip_cases() -> list[Case]:
    draw, cases = Random("best-clip"), []

    def add(family: str, name: str, numbers: list[float], largest: int, shares: list[float], help_: str = "") -> None:
        arguments: tuple[Any, ...] = (numbers, largest, shares)
        cases.append(Case(family, name, fixed(*arguments), clipped_by_squares, 1e-12, 0, help_))

    for number, length in enumerate((16, 24, 40, 33)):
        add("random", str(number), [draw.gauss(0, 1) for _ in range(length)], 7, SHARES)
    for number in range(2):
        many = [draw.gauss(0, 0.2) for _ in range(48)]
        add("outlier", f"one giant, {number}", [*many, 1.5 + number], 7, SHARES, "cutting the giant pays")
        add("outlier", f"one giant below zero, {number}", [*many, -1.5 - number], 7, SHARES, "a giant may be negative")
    add("fine", "8 bits: hardly anything to gain", [draw.uniform(-1, 1) for _ in range(32)], 127, SHARES)
    add("coarse", "three codes", [draw.gauss(0, 1) for _ in range(20)], 1, SHARES)
    add("ragged", "other shares", [draw.gauss(0, 3) for _ in range(29)], 7, [1.0, 0.95, 0.85, 0.55, 0.35])
    add("tie", "two shares that lose the same", [1.0, -2.0, 4.0], 1, [1.0, 0.5], "the first of equal ones")
    add("single", "one number, 0", [0.0], 7, SHARES, "nothing is lost with any share: the first")
    add("single", "one number", [3.7], 7, SHARES, "covered whole, it comes back exactly")
    add("single", "one share", [draw.gauss(0, 1) for _ in range(9)], 7, [0.8])
    return cases
