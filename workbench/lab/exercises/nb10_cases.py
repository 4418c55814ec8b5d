"""Right answers for the exercises of notebook 10, found in other ways, and the cases they are checked with."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

Matrix = list[list[float]]


def group_by_trying(numbers: list[float], bits: int) -> tuple[list[int], float, int]:
    """Every code is tried; of two that are equally near the one whose distance from the zero point is even."""
    every = range(2**bits)
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    scale = (high - low) / (len(every) - 1) if high > low else 1.0
    zero = min(every, key=lambda code: (abs(Fraction(-low / scale) - code), code % 2))

    def nearest(number: float) -> int:
        return min(every, key=lambda code: (abs(Fraction(number / scale) - (code - zero)), (code - zero) % 2))

    return [nearest(number) for number in numbers], scale, zero


def packed_by_bits(numbers: list[int], bits: int) -> list[int]:
    """As text: the binary digits of a word, the last number first."""
    words = []
    each = 32 // bits
    for start in range(0, len(numbers), each):
        digits = "".join(f"{number:0{bits}b}" for number in reversed(numbers[start : start + each])).zfill(32)
        words.append(int.from_bytes(int(digits, 2).to_bytes(4, "little"), "little", signed=True))
    return words


def compensated_by_inverse(weights: list[float], rounded: float, factors: list[float]) -> list[float]:
    """By the first row of the inverse Hessian, which the row of U makes: [H⁻¹]₀ₖ = U₀₀ · U₀ₖ."""
    row = [factors[0] * factor for factor in factors]
    return [weight - (weights[0] - rounded) * entry / row[0] for weight, entry in zip(weights, row, strict=True)][1:]


def by_hessian(compensate: Callable[..., list[float]], hessian: Matrix, weights: list[float], rounded: float) -> Any:
    """The reader's function with the first row of U that a Hessian has: that of its inverse by the root of the
    diagonal."""
    size = len(hessian)
    row = solved(hessian, [float(place == 0) for place in range(size)])
    return compensate(list(weights), rounded, [entry / row[0] ** 0.5 for entry in row])


def least_change(hessian: Matrix, weights: list[float], rounded: float) -> list[float]:
    """The weights after the first that change the output least, by the equations of the minimum: with Δ₀ given,
    H₁₁ Δ₁ = −H₁₀ Δ₀."""
    rest = [row[1:] for row in hessian[1:]]
    change = solved(rest, [-row[0] * (rounded - weights[0]) for row in hessian[1:]])
    return [weight + step for weight, step in zip(weights[1:], change, strict=True)]


def solved(matrix: Matrix, right: list[float]) -> list[float]:
    """x with matrix · x = right, for a positive definite matrix, by elimination."""
    rows = [[*row, number] for row, number in zip(matrix, right, strict=True)]
    for place, pivot in enumerate(rows):
        for below in rows[place + 1 :]:
            share = below[place] / pivot[place]
            below[:] = [a - share * b for a, b in zip(below, pivot, strict=True)]
    found: list[float] = []
    for place in reversed(range(len(rows))):
        known = sum(a * b for a, b in zip(rows[place][place + 1 : -1], found, strict=True))
        found.insert(0, (rows[place][-1] - known) / rows[place][place])
    return found


def group_cases() -> list[Case]:
    draw, cases = Random("round-group"), []

    def add(family: str, name: str, numbers: list[float], bits: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(numbers, bits), group_by_trying, 1e-12, 1e-12, help_))

    for number in range(8):
        length, bits = draw.choice((5, 8, 16, 32)), draw.choice((2, 3, 4, 8))
        add("random", f"{number}: {length} numbers in {bits} bits", [draw.gauss(0, 0.1) for _ in range(length)], bits)
    add("one side", "all above 0", [0.5, 0.75, 2.0], 4, "the range always holds 0")
    add("one side", "all below 0", [-0.5, -0.75, -2.0], 4, "the range always holds 0")
    add("edge", "an end beyond the last code", [-1.5, 0.4, 1.5, -0.2], 2, "1.5 rounds to 2, and the zero point is 2")
    add("edge", "a zero point that is rounded down", [-1.4, 1.6, 0.3, -0.9], 2)
    add("edge", "an odd zero point and a tie", [-1.0, 0.5, 2.0, 1.5], 2, "round first, then add the zero point")
    add("single", "one number", [0.25], 4)
    add("zeros", "nothing but zeros, and one of them negative", [0.0], 4, "a scale of 0 cannot be divided by")
    return cases


def pack_cases() -> list[Case]:
    draw, cases = Random("pack"), []

    def add(family: str, name: str, numbers: list[int], bits: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(numbers, bits), packed_by_bits, help=help_))

    for number, (length, bits) in enumerate(((8, 4), (24, 4), (16, 8), (32, 2), (64, 4))):
        add("random", f"{number}: {length} of {bits} bits", [draw.randrange(1 << bits) for _ in range(length)], bits)
    add("ragged", "eleven numbers of 4 bits", [draw.randrange(16) for _ in range(11)], 4, "filled up with zeros")
    add("ragged", "five numbers of 8 bits", [draw.randrange(256) for _ in range(5)], 8)
    add("sign", "the lowest negative word", [0, 0, 0, 0, 0, 0, 0, 8], 4, "2 ** 31 is one too many for an int32")
    add("sign", "the largest positive word", [15, 15, 15, 15, 15, 15, 15, 7], 4)
    add("single", "one number", [9], 4)
    add("empty", "none", [], 4)
    return cases


def compensate_cases() -> list[Case]:
    draw, cases = Random("compensate"), []
    for number in range(5):
        size = draw.randint(2, 6)
        inputs = [[draw.gauss(0, 1) for _ in range(size)] for _ in range(3 * size)]
        hessian = [[sum(x[i] * x[j] for x in inputs) for j in range(size)] for i in range(size)]
        weights = [draw.uniform(-1, 1) for _ in range(size)]
        make = fixed(hessian, weights, round(weights[0] * 4) / 4)
        cases.append(
            Case(
                "least squares",
                f"{number}: {size} weights",
                make,
                least_change,
                1e-8,
                1e-10,
                call=by_hessian,
                help="no other change of the weights to come may give a smaller error",
                inputs=("Σxxᵀ", "weights", "rounded"),
            )
        )
    for number in range(3):
        size = draw.randint(2, 7)
        factors = [draw.uniform(0.5, 2), *(draw.uniform(-1, 1) for _ in range(size - 1))]
        arguments: tuple[Any, ...] = ([draw.uniform(-2, 2) for _ in range(size)], draw.uniform(-2, 2), factors)
        cases.append(Case("random", str(number), fixed(*arguments), compensated_by_inverse, 1e-9, 1e-12))
    cases.append(Case("single", "the last weight", fixed([0.3], 0.0, [1.5]), compensated_by_inverse))
    return cases
