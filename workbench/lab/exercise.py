"""Exercise: a specification, a skeleton, a check that can be trusted, hints, and a place in the running engine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from workbench.errors import UsageError
from workbench.lab import exercise_source as source
from workbench.lab.exercise_cases import BY_HAND, Case, Example, fixed, refuse_all_equal
from workbench.lab.exercise_grading import grade
from workbench.lab.exercise_result import (
    FAILS,
    NOT_ATTEMPTED,
    PASSES,
    REFERENCE,
    SKIPPED,
    Result,
)
from workbench.lab.exercise_source import Text

TIME_LIMIT_S = 5.0
"""Seconds that one case may take."""
GRADES = ("", "reference", "strict")
_in_use: list[str] = []
"""The exercise whose function is in the engine now."""


class Progress(Protocol):
    """Where states are kept, the newest of each exercise.

    ``state``: one of the four of `exercise_result`. That a reader looked at a solution is kept beside the state, under
    ``<id>/solution`` with the state ``shown``: it must replace no pass and be replaced by none.
    """

    def record_exercise(self, notebook: str, exercise: str, state: str) -> None: ...


class Mutant(NamedTuple):
    """A wrong variant of the solution: ``old`` stands in its source once and becomes ``new``."""

    name: str
    old: str
    new: str


class Swap(NamedTuple):
    """A place in the engine: ``attribute`` of ``module``, or of the class ``owner`` in it."""

    module: str
    owner: str
    attribute: str
    adapt: Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]
    """(reader's function, the engine's own) to what stands in the engine's place."""
    call: Callable[..., Any] = lambda function, *arguments: function(*arguments)
    """How the function is called: as it is, or, say, launched as a kernel."""

    @property
    def place(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.attribute) if part)

    def holder(self) -> Any:
        module = import_module(self.module)
        return getattr(module, self.owner) if self.owner else module


@dataclass(slots=True)
class Used:
    """What runs inside `Exercise.use`."""

    who: str
    """``your function``, ``the reference solution`` or ``the engine's own``."""
    calls: int = 0
    """How often the engine has called it; stays 0 for the engine's own."""
    function: Callable[..., Any] | None = None
    """Yours or the solution; None for the engine's own."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What to write: a statement, the signature, and calls that can be checked by hand."""

    title: str
    """With its difficulty and its minutes."""
    statement: str
    signature: str
    examples: str
    """Python source: asserts that hold once the function is written."""

    def __repr__(self) -> str:
        return f"{self.title}\n\n{self.statement}\n\n{self.signature}\n\n{self.examples}"

    def _repr_markdown_(self) -> str:
        return f"**{self.title}**\n\n{self.statement}\n\n```python\n{self.signature}\n\n{self.examples}\n```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One exercise. ``function`` is the solution with its markers; everything that a reader sees is made from it."""

    notebook: str
    """Number, ``01``."""
    id: str
    title: str
    difficulty: int
    """1 to 3."""
    minutes: int
    statement: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    """The right answer, found in another way than the solution finds it (by counting, say)."""
    examples: tuple[Example, ...]
    cases: Callable[[], Sequence[Case]]
    """Cases besides the examples; the same ones on every call."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Names for long values in the examples."""
    hints: tuple[str, str, str]
    """A question, an invariant or a shape, nearly the code."""
    mutants: tuple[Mutant, ...]
    swap: Swap | None = None
    needs: Callable[[], str] = lambda: ""
    """Why it cannot be checked here (no such device, say); empty = it can."""
    time_limit_s: float = TIME_LIMIT_S
    progress: Progress | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"{self.id}: {self.title} ({self.level})"

    @property
    def level(self) -> str:
        """Difficulty of three, and minutes."""
        return f"difficulty {'●' * self.difficulty}{'○' * (3 - self.difficulty)}, {self.minutes} minutes"

    def kept_in(self, progress: Progress) -> Exercise:
        """The same exercise, whose states are recorded in ``progress``."""
        return replace(self, progress=progress)

    # What a reader sees.

    @property
    def name(self) -> str:
        """Name of the function to write."""
        return self.function.__name__

    @property
    def spec(self) -> Spec:
        title = f"{self.title} ({self.level})"
        signature = source.signature(source.source_of(self.function))
        given = [source.wrapped(f"{name} = {value!r}") for name, value in self.given.items()]
        asserts = [example.as_assert(self.name, self.given) for example in self.examples]
        return Spec(title, self.statement, signature, "\n".join([*given, *asserts]))

    @property
    def skeleton(self) -> str:
        """What stands in the notebook's cell."""
        return source.skeleton(source.source_of(self.function))

    def hint(self, number: int) -> Text:
        """Hint 1 asks, hint 2 says what holds, hint 3 nearly writes it. Raises UsageError for another number."""
        if number not in (1, 2, 3):
            raise UsageError(f"hint {number!r}: there are hints 1, 2 and 3")
        return Text(self.hints[number - 1])

    def solution(self) -> Text:
        """The source of a solution. That it was shown is recorded in progress."""
        self._record("shown", "/solution")
        return Text(source.solution(source.source_of(self.function)))

    # The check.

    def all_cases(self) -> list[Case]:
        """The examples and the other cases. Raises ValueError for a case that could not tell right from wrong."""
        by_hand = [
            Case(
                BY_HAND,
                example.as_assert(self.name, self.given),
                fixed(*example.arguments),
                _same(example.result),
                help=example.help,
            )
            for example in self.examples
        ]
        cases = [*by_hand, *self.cases()]
        refuse_all_equal(cases)
        return cases

    def check(self, function: Callable[..., Any]) -> Result:
        """Grades a function, shows the result and returns it. A failure is a result, not an error.

        WORKBENCH_GRADE=strict: AssertionError unless it passes or is skipped. WORKBENCH_GRADE=reference: the solution
        stands in for a function that is not attempted, and the result says so. Raises UsageError for what is no
        function.
        """
        result = self.graded(function)
        # What the solution achieves is not the reader's achievement.
        self._record(NOT_ATTEMPTED if result.graded == REFERENCE else result.state)
        result.show()
        if current_grade() == "strict" and result.state not in (PASSES, SKIPPED):
            raise AssertionError(result.line)
        return result

    def graded(self, function: Callable[..., Any]) -> Result:
        """As `check`, without showing or recording anything and without the errors of WORKBENCH_GRADE=strict."""
        wanted = current_grade()
        if not callable(function) or inspect.isclass(function):
            raise UsageError(f"check takes the function {self.name}, not {function!r}: leave out the () after its name")
        if reason := self.needs():
            return Result(self.id, SKIPPED, reason=reason)
        result = grade(self.id, function, self.all_cases(), self.time_limit_s)
        if result.state == NOT_ATTEMPTED and wanted == "reference":
            result = replace(grade(self.id, self.function, self.all_cases(), self.time_limit_s), graded=REFERENCE)
            if not result.passed:
                raise AssertionError(f"the exercise is broken: {result}")
        return result

    # In the engine.

    @contextmanager
    def use(self, function: Callable[..., Any]) -> Iterator[Used]:
        """Puts the function into the engine for the duration of a ``with`` block; the engine's own comes back after it.

        A function that is not attempted leaves the engine as it is, and says so (WORKBENCH_GRADE=reference: the
        solution is put in). Raises UsageError for one that fails its check, inside another ``use``, or if the exercise
        has no place in the engine.
        """
        if self.swap is None:
            raise UsageError(f"{self.id} has no place in the engine: call your {self.name} yourself")
        if _in_use:
            raise UsageError(f"{_in_use[0]} is in the engine now: leave its 'with' block before you use {self.id}")
        result = self.graded(function)
        if result.state == FAILS:
            where = result.failure.case if result.failure else ""
            raise UsageError(
                f"your {self.name} fails its check ({where}), so it does not go into the engine: make "
                f"check({self.name}) pass first; hint(1) helps"
            )
        if result.state in (NOT_ATTEMPTED, SKIPPED):
            print(f"{self.id}: {result.state}, so the engine keeps its own {self.swap.place}")
            yield Used("the engine's own")
            return
        chosen = self.function if result.graded == REFERENCE else function
        used = Used(result.graded, function=chosen)
        print(f"{self.id}: {used.who} stands for {self.swap.place}")
        with self._swapped(_counting(chosen, used, self.swap.call)):
            yield used

    @contextmanager
    def _swapped(self, function: Callable[..., Any]) -> Iterator[None]:
        assert self.swap is not None
        holder, attribute = self.swap.holder(), self.swap.attribute
        # From the holder's own names, so that what is put back is what was there (a static method, say).
        original = vars(holder)[attribute]
        setattr(holder, attribute, self.swap.adapt(function, getattr(holder, attribute)))
        _in_use.append(self.id)
        try:
            yield
        finally:
            _in_use.remove(self.id)
            setattr(holder, attribute, original)

    def _record(self, state: str, part: str = "") -> None:
        if self.progress is not None:
            self.progress.record_exercise(self.notebook, self.id + part, state)


def current_grade() -> str:
    """WORKBENCH_GRADE: nothing, ``reference`` or ``strict``. Raises UsageError for anything else."""
    value = os.environ.get("WORKBENCH_GRADE", "")
    if value not in GRADES:
        raise UsageError(f"WORKBENCH_GRADE={value!r} is not known: use 'reference' or 'strict', or leave it out")
    return value


def _same(result: Any) -> Callable[..., Any]:
    return lambda *arguments: result


def _counting(function: Callable[..., Any], used: Used, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        used.calls += 1
        return call(function, *arguments)

    return counted
