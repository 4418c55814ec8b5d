"""A small exercise that the tests of exercises share, and what readers may hand in for it."""

from __future__ import annotations

from itertools import accumulate
from random import Random

from workbench.lab.exercise import Exercise, Mutant
from workbench.lab.exercise_cases import Case, Example


def running_total(values: list[float]) -> list[float]:
    """The sum of the values up to and including each one."""
    count = len(values)
    # your turn: add each value to those before it
    totals = list(values)
    for index in range(1, count):
        totals[index] += totals[index - 1]
    return totals
    # end


def _cases() -> list[Case]:
    draw, cases = Random(0), []
    for number, length in enumerate((3, 8, 5)):
        values = [draw.randint(-9, 9) / 4 for _ in range(length)]
        cases.append(Case("random", f"list {number}", lambda values=values: (list(values),), _expected))
    cases.append(Case("empty", "no values", lambda: ([],), _expected, help="a list may be empty"))
    return cases


def _expected(values: list[float]) -> list[float]:
    return list(accumulate(values))


RUNNING_TOTAL = Exercise(
    notebook="00",
    id="running-total",
    title="Running total",
    difficulty=1,
    minutes=3,
    statement="Add up as you go.",
    function=running_total,
    reference=_expected,
    examples=(Example(([1, 2, 4],), [1, 3, 7], "1, 1 + 2, 1 + 2 + 4"),),
    cases=_cases,
    hints=("What does each sum share with the one before it?", "As many sums as values.", "total += value"),
    mutants=(
        Mutant("one too far back", "totals[index - 1]", "totals[index - 2]"),
        Mutant("the first twice", "range(1, count)", "range(count)"),
        Mutant("no sum", "+=", "="),
    ),
    time_limit_s=0.3,
)


class Kept:
    """Progress as a list."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str, str]] = []

    def record_exercise(self, notebook: str, exercise: str, state: str) -> None:
        self.states.append((notebook, exercise, state))
