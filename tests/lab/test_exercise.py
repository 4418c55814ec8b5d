"""The states of an exercise are told apart, and a failure says what a reader needs in order to go on."""

from __future__ import annotations

import linecache
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.exercise_made import RUNNING_TOTAL, Kept, running_total
from workbench.errors import UsageError
from workbench.lab import exercise_source as source
from workbench.lab.exercise_cases import Case, difference
from workbench.lab.exercise_result import FAILS, NOT_ATTEMPTED, PASSES, SKIPPED, Result
from workbench.lab.exercise_source import NotAttempted


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def failure(function: Any):
    result = RUNNING_TOTAL.graded(function)
    assert result.state == FAILS and result.failure is not None and not result.passed
    return result.failure


# Stubs.


def dots(values):
    """Nothing yet."""
    ...


def passing(values):
    pass


def begun(values):
    count = len(values)
    count += 1
    ...


def raising(values):
    raise NotAttempted


def helped(values):
    def inner():
        raise NotImplementedError("your turn: later")

    return inner()


@pytest.mark.parametrize("stub", [dots, passing, begun, raising, helped, lambda values: ...])
def test_a_stub_is_not_attempted(stub: Any):
    if stub.__name__ == "<lambda>":
        # It answers Ellipsis, which is an answer.
        assert failure(stub).got == "Ellipsis"
        return
    result = RUNNING_TOTAL.graded(stub)
    assert result.state == NOT_ATTEMPTED and result.failure is None and not result.passed


def test_the_skeleton_is_not_attempted_and_says_what_to_do():
    result = RUNNING_TOTAL.graded(source.compiled(RUNNING_TOTAL.skeleton, "running_total"))
    assert result.line == "running-total: not attempted: your turn: add each value to those before it"


def test_a_stub_without_source_is_a_stub():
    stub = source.compiled("def f(values):\n    ...\n", "f", "<no file>")
    linecache.cache.pop("<no file>")
    assert RUNNING_TOTAL.graded(stub).state == NOT_ATTEMPTED
    assert RUNNING_TOTAL.graded(stub).state == NOT_ATTEMPTED


def test_a_forgotten_return_is_an_attempt():
    def forgets(values):
        [sum(values[: end + 1]) for end in range(len(values))]

    assert "is a return missing?" in failure(forgets).words


def test_half_a_function_is_an_attempt():
    def half(values):
        if values:
            return running_total(values)
        raise NotImplementedError("your turn: the empty list")

    found = failure(half)
    assert found.case == "empty: no values" and "the empty list" in found.words


def test_what_a_library_has_not_implemented_is_a_failure():
    import torch

    # Raised in a file that is not the reader's, and by a call in C that leaves no frame of its own.
    outside = source.compiled("def library():\n    raise NotImplementedError('no')\n", "library")
    assert "NotImplementedError: no" in failure(lambda values: outside()).got
    assert "NotImplementedError" in failure(lambda values: torch.zeros(2, device="meta").tolist()).got


# Failures.


def test_a_wrong_answer_shows_case_inputs_expected_got_and_index():
    def off(values):
        return [total + (index == 2) for index, total in enumerate(running_total(values))]

    found = failure(off)
    assert found.case == "by hand: assert running_total([1, 2, 4]) == [1, 3, 7]"
    assert found.inputs == (("values", "[1, 2, 4]"),)
    assert (found.expected, found.got, found.where) == ("7", "8", "[2]")
    assert found.help == "1, 1 + 2, 1 + 2 + 4"
    text = repr(RUNNING_TOTAL.graded(off))
    for shown in ("[1, 2, 4]", "first bad index  [2]", "you gave         8", "by hand 0 of 1", "empty 1 of 1"):
        assert shown in text


def test_an_exception_is_a_failure_with_its_line():
    def broken(values):
        return values[0] + [1][len(values)]

    found = failure(broken)
    assert found.got == "IndexError: list index out of range"
    assert found.line.endswith("return values[0] + [1][len(values)]")
    assert int(found.line.split(":")[0]) == broken.__code__.co_firstlineno + 1


def test_leaving_python_is_a_failure():
    assert "SystemExit" in failure(lambda values: sys.exit(3)).got


def test_an_interrupt_by_the_reader_passes_through():
    def interrupted(values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RUNNING_TOTAL.graded(interrupted)


def test_a_changed_input_is_a_failure_even_with_the_right_answer():
    def in_place(values):
        for index in range(1, len(values)):
            values[index] += values[index - 1]
        return values

    found = failure(in_place)
    assert found.got == "the right answer"
    assert "changed its input: values[1] was 2 and is 3" in found.words


def test_a_loop_without_end_is_stopped():
    def loops(values):
        while True:
            pass

    assert "ran for more than 0.3 s" in failure(loops).words


def test_prints_are_kept_out_of_the_way_and_shown_with_a_failure(capsys: pytest.CaptureFixture[str]):
    def chatty(values):
        for number in range(20):
            print("line", number)
        return []

    printed = failure(chatty).printed.splitlines()
    assert printed[0] == "line 0" and printed[-1] == "… and 12 lines more" and len(printed) == 9
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: [], "too many positional arguments"),
        (lambda values, more: [], "missing a required argument: 'more'"),
        (lambda values: "1 3 7", "a list was expected, not a str"),
        (lambda values: [1, 3], "3 values expected, 2 came"),
        (lambda values: [1, 3, "7"], "a number was expected, not a str"),
        (lambda values: [True, 3, 7], "a number was expected, not a bool"),
        (lambda values: [1, 3, 14], "2 times what was expected"),
        (lambda values: [1, 3, float("nan")], ""),
    ],
)
def test_wrong_kinds_are_named(function: Any, words: str):
    assert words in failure(function).words


def test_a_tuple_or_an_array_of_the_right_numbers_is_right():
    import numpy as np

    assert RUNNING_TOTAL.graded(lambda values: tuple(running_total(values))).passed
    assert RUNNING_TOTAL.graded(lambda values: np.cumsum(values)).passed
    assert RUNNING_TOTAL.graded(lambda values: [np.float64(total) for total in running_total(values)]).passed


@pytest.mark.parametrize("thing", [7, None, int, [1]])
def test_what_is_no_function_is_refused(thing: Any):
    with pytest.raises(UsageError, match="check takes the function running_total"):
        RUNNING_TOTAL.check(thing)


def test_what_cannot_be_checked_here_is_skipped_and_not_passed():
    elsewhere = replace(RUNNING_TOTAL, needs=lambda: "needs a CUDA device")
    result = elsewhere.graded(running_total)
    assert (result.state, result.passed) == (SKIPPED, False)
    assert result.line == "running-total: skipped: needs a CUDA device"


# Comparing.


def test_arrays_are_compared_by_shape_and_number():
    import torch

    wanted = torch.arange(6.0).view(2, 3)
    assert difference(wanted, wanted.t().contiguous().t()) is None
    assert difference(wanted, wanted.view(3, 2)).got == "shape (3, 2)"
    assert difference(wanted, wanted.tolist()).words == "an array was expected, not a list"
    other = wanted.clone()
    other[1, 0] += 1e-3
    assert difference(wanted, other, (1e-2, 0.0)) is None
    assert difference(wanted, other, (1e-6, 0.0)).where == "[1][0]"


def test_tolerance_is_for_floats_only():
    assert difference(10**12, 10**12 + 1, (1e-3, 1.0)) is not None
    assert difference(1e12, 1e12 + 1, (1e-9, 0.0)) is None
    assert difference(0.0, 1e-9, (1e-3, 0.0)) is not None
    assert difference(0.0, 1e-9, (0.0, 1e-6)) is None
    assert difference(float("inf"), 1e300, (1e-3, 0.0)) is not None


def test_mappings_name_the_key():
    assert difference({"a": 1, "b": [2]}, {"a": 1, "b": [3]}).where == "['b'][0]"
    assert "'b' is missing" in difference({"a": 1, "b": 2}, {"a": 1}).words
    assert "'c' is not expected" in difference({"a": 1}, {"a": 1, "c": 2}).words


def test_equal_inputs_are_refused():
    flat = replace(
        RUNNING_TOTAL, cases=lambda: [Case("random", "flat", lambda: ([2, 2, 2],), lambda values: [2, 4, 6])]
    )
    with pytest.raises(ValueError, match="random/flat: all values of an input are equal"):
        flat.graded(running_total)


# What is shown and kept.


def test_check_shows_once_and_records(capsys: pytest.CaptureFixture[str]):
    kept = Kept()
    exercise = RUNNING_TOTAL.kept_in(kept)
    result = exercise.check(running_total)
    assert isinstance(result, Result) and result.state == PASSES
    assert capsys.readouterr().out == "running-total: passes, 5 of 5 cases (by hand 1, random 3, empty 1)\n"
    result._ipython_display_()
    assert capsys.readouterr().out == ""
    result._ipython_display_()
    assert capsys.readouterr().out.startswith("running-total: passes")
    exercise.check(dots)
    exercise.check(lambda values: [])
    assert kept.states == [("00", "running-total", state) for state in (PASSES, NOT_ATTEMPTED, FAILS)]


def test_the_solution_is_one_recorded_call_away():
    kept = Kept()
    exercise = RUNNING_TOTAL.kept_in(kept)
    assert "your turn" not in repr(exercise.hint(1))
    assert kept.states == []
    assert "totals[index] += totals[index - 1]" in exercise.solution()
    assert kept.states == [("00", "running-total/solution", "shown")]


def test_hints_are_three():
    assert [RUNNING_TOTAL.hint(number) for number in (1, 2, 3)] == list(RUNNING_TOTAL.hints)
    with pytest.raises(UsageError, match="hint 4: there are hints 1, 2 and 3"):
        RUNNING_TOTAL.hint(4)


def test_the_specification_can_be_run():
    spec = RUNNING_TOTAL.spec
    assert spec.signature == "def running_total(values: list[float]) -> list[float]"
    exec(spec.examples, {"running_total": running_total})
    with pytest.raises(AssertionError):
        exec(spec.examples, {"running_total": list})
    assert "```python" in spec._repr_markdown_()


# WORKBENCH_GRADE.


def test_strict_raises_for_all_but_a_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKBENCH_GRADE", "strict")
    assert RUNNING_TOTAL.check(running_total).passed
    with pytest.raises(AssertionError, match="running-total: fails"):
        RUNNING_TOTAL.check(lambda values: [])
    with pytest.raises(AssertionError, match="running-total: not attempted"):
        RUNNING_TOTAL.check(dots)
    assert replace(RUNNING_TOTAL, needs=lambda: "needs a GPU").check(dots).state == SKIPPED


def test_reference_grades_the_solution_of_a_stub_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WORKBENCH_GRADE", "reference")
    kept = Kept()
    exercise = RUNNING_TOTAL.kept_in(kept)
    assert exercise.check(dots).passed
    assert "graded the reference solution, not yours (yours: not attempted): passes" in capsys.readouterr().out
    assert kept.states == [("00", "running-total", NOT_ATTEMPTED)]
    assert exercise.check(lambda values: []).state == FAILS
    assert exercise.check(running_total).graded == "your function"


def test_a_solution_that_fails_is_not_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKBENCH_GRADE", "reference")
    with pytest.raises(AssertionError, match="the exercise is broken"):
        replace(RUNNING_TOTAL, function=list).check(dots)


def test_an_unknown_grade_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKBENCH_GRADE", "lenient")
    with pytest.raises(UsageError, match="WORKBENCH_GRADE='lenient' is not known: use 'reference' or 'strict'"):
        RUNNING_TOTAL.check(running_total)
