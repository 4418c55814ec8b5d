"""What a check found: the state of an exercise, and the first case that failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.lab.display import show_now
from workbench.lab.exercise_source import Text
from workbench.lab.table import Cell, Table

NOT_ATTEMPTED, FAILS, PASSES, SKIPPED = "not attempted", "fails", "passes", "skipped"
STATES = (NOT_ATTEMPTED, FAILS, PASSES, SKIPPED)
YOURS, REFERENCE = "your function", "the reference solution"
_PRINTED_LINES = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """The first case that failed. Texts; empty where there is nothing to say."""

    case: str
    inputs: tuple[tuple[str, str], ...]
    """(parameter, value)."""
    expected: str
    got: str
    where: str = ""
    """First bad index, ``[1][0]``."""
    line: str = ""
    """The reader's line that raised, with its number."""
    words: str = ""
    help: str = ""
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """``state`` is one of ``not attempted``, ``fails``, ``passes``, ``skipped``, and only ``passes`` is a pass."""

    exercise: str
    state: str
    families: tuple[tuple[str, int, int], ...] = ()
    """(family, cases passed, cases there are)."""
    failure: Failure | None = None
    reason: str = ""
    """Why not attempted or skipped."""
    graded: str = YOURS
    """``your function`` or ``the reference solution`` (WORKBENCH_GRADE=reference)."""
    _shown: list[bool] = field(default_factory=list, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        return self.state == PASSES

    @property
    def line(self) -> str:
        """The result in one line."""
        done, total = sum(one[1] for one in self.families), sum(one[2] for one in self.families)
        text = f"{self.exercise}: {self.state}"
        if self.graded == REFERENCE:
            text = f"{self.exercise}: graded the reference solution, not yours (yours: not attempted): {self.state}"
        if self.state in (PASSES, FAILS):
            text += f", {done} of {total} cases"
        if self.state == PASSES:
            text += f" ({', '.join(f'{family} {passed}' for family, passed, _ in self.families)})"
        return f"{text}: {self.reason}" if self.reason else text

    def view(self) -> Table | Text:
        """One line, or for a failure a table of what was asked, expected and got."""
        failure = self.failure
        if failure is None:
            return Text(self.line)
        rows: list[list[Cell | str | int]] = [
            [name, Cell(text, "alert") if name == "you gave" else text]
            for name, text in (
                ("case", failure.case),
                *((f"input {name}", text) for name, text in failure.inputs),
                ("expected", failure.expected),
                ("you gave", failure.got),
                ("first bad index", failure.where),
                ("your line", failure.line),
                ("that is", failure.words),
                *((f"it printed ({number})", text) for number, text in enumerate(failure.printed.splitlines(), 1)),
                ("think of", failure.help),
                ("cases passed", ", ".join(f"{name} {passed} of {total}" for name, passed, total in self.families)),
            )
            if text
        ]
        return Table([self.exercise, self.state], rows, self.line)

    def __repr__(self) -> str:
        return repr(self.view())

    def show(self) -> None:
        show_now(self.view())
        self._shown.append(True)

    def _ipython_display_(self) -> None:
        # `check` has shown it; where it is also the last line of a cell, it would stand there twice.
        if self._shown:
            self._shown.clear()
        else:
            show_now(self.view())


def printed_lines(text: str) -> str:
    """The first lines of what a function printed."""
    lines = text.splitlines()
    rest = [f"… and {len(lines) - _PRINTED_LINES} lines more"] if len(lines) > _PRINTED_LINES else []
    return "\n".join([*lines[:_PRINTED_LINES], *rest])
