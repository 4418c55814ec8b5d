"""Every exercise of the course: its skeleton fits its solution, its solution passes, and wrong variants do not."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from tests.lab.exercise_made import RUNNING_TOTAL, Kept, running_total
from workbench.errors import UsageError
from workbench.lab import exercise_source as source
from workbench.lab.course import notebooks
from workbench.lab.exercise import Exercise, Mutant
from workbench.lab.exercise_cases import BY_HAND, difference
from workbench.lab.exercise_result import FAILS, NOT_ATTEMPTED, PASSES
from workbench.lab.exercises import NOTEBOOKS, exercise, exercises

ALL = [one for number in NOTEBOOKS for one in exercises(number).values()]
FEWEST_MUTANTS, FEWEST_FAMILIES, MAX_LINE = 3, 3, 120


def faults(one: Exercise) -> list[str]:
    """What is wrong with an exercise, without its mutants; empty when nothing is."""
    found = []
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.id):
        found.append("the id is no name")
    if not (1 <= one.difficulty <= 3 and 2 <= one.minutes <= 45):
        found.append("difficulty or minutes")
    if not (one.title and one.statement.endswith(".")):
        found.append("no title or statement")
    if any(not hint.endswith((".", "?")) for hint in one.hints) or not one.hints[0].endswith("?"):
        found.append("hints: the first is a question, all are sentences")
    answer = [line.strip() for line in _in_gaps(one) if len(line.strip()) > 20]
    if not answer or all(line in one.hints[2] for line in answer) or any(line in one.hints[0] for line in answer):
        found.append("a hint is the solution")
    if any(len(line) > MAX_LINE for line in one.skeleton.splitlines()):
        found.append("a line of the skeleton is too long")
    families = {case.family for case in one.all_cases()}
    if len(families) < FEWEST_FAMILIES or not {BY_HAND, "random"} <= families:
        found.append(f"families {sorted(families)}")
    if len(one.mutants) < FEWEST_MUTANTS or len({mutant.name for mutant in one.mutants}) < len(one.mutants):
        found.append(f"{len(one.mutants)} mutants")
    return found


def _in_gaps(one: Exercise) -> list[str]:
    lines = source.source_of(one.function).splitlines()
    return [line for gap in source.gaps("\n".join(lines)) for line in lines[gap.begin + 1 : gap.end]]


def survives(one: Exercise, mutant: Mutant) -> str:
    """Why a mutant proves nothing; empty if the check fails it."""
    right = source.solution(source.source_of(one.function))
    if right.count(mutant.old) != 1:
        return f"its old text stands {right.count(mutant.old)} times in the solution"
    wrong = right.replace(mutant.old, mutant.new)
    if ast.dump(ast.parse(wrong)) == ast.dump(ast.parse(right)):
        return "it changes nothing"
    state = one.graded(source.compiled(wrong, one.name)).state
    return "" if state == FAILS else state


def test_there_are_exercises():
    assert ALL and {one.notebook for one in ALL} == set(NOTEBOOKS)
    assert len({(one.notebook, one.id) for one in ALL}) == len(ALL)
    assert set(NOTEBOOKS) <= {notebook.name[:2] for notebook in notebooks()}


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


every = pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.notebook}-{one.id}")


@every
def test_it_is_well_made(one: Exercise):
    assert faults(one) == []


@every
def test_the_skeleton_is_the_solution_outside_the_gaps(one: Exercise):
    text, skeleton = source.source_of(one.function), one.skeleton
    marked = re.compile(r"^( *)# your turn: .*\n(?:.*\n)*?\1# end\n", re.MULTILINE)
    stub = re.compile(r"^ *raise NotImplementedError\(\"your turn: .*\"\)\n", re.MULTILINE)
    assert len(marked.findall(text)) == len(stub.findall(skeleton)) > 0
    assert marked.sub("", text) == stub.sub("", skeleton)
    ours, theirs = (ast.parse(code).body[0] for code in (source.solution(text), skeleton))
    assert isinstance(ours, ast.FunctionDef) and isinstance(theirs, ast.FunctionDef)
    assert ast.dump(ours.args) == ast.dump(theirs.args) and ours.name == theirs.name
    assert ast.get_docstring(ours) == ast.get_docstring(theirs) != ""


@every
def test_the_skeleton_is_not_attempted_and_the_solution_passes(one: Exercise):
    assert one.graded(source.compiled(one.skeleton, one.name)).state == NOT_ATTEMPTED
    result = one.graded(source.compiled(one.solution(), one.name))
    assert result.state == PASSES, result


@every
def test_examples_hold_for_solution_and_reference(one: Exercise):
    exec(one.spec.examples, {one.name: source.compiled(one.solution(), one.name)})
    for example in one.examples:
        assert difference(example.result, one.reference(*example.arguments), (1e-6, 0.0)) is None


@every
def test_wrong_variants_fail(one: Exercise):
    assert {mutant.name: why for mutant in one.mutants if (why := survives(one, mutant))} == {}


@every
def test_cases_are_the_same_every_time(one: Exercise):
    first, second = one.all_cases(), one.all_cases()
    assert [case.name for case in first] == [case.name for case in second]
    assert [case.make() for case in first] == [case.make() for case in second]
    assert len({(case.family, case.name) for case in first}) == len(first)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"id": "Running total"}, "the id is no name"),
        ({"difficulty": 4}, "difficulty or minutes"),
        ({"minutes": 0}, "difficulty or minutes"),
        ({"statement": ""}, "no title or statement"),
        ({"hints": ("Add.", "As many.", "Do it.")}, "the first is a question"),
        (
            {"hints": ("What?", "As many.", " ".join(map(str.strip, _in_gaps(RUNNING_TOTAL))) + ".")},
            "a hint is the solution",
        ),
        ({"cases": list}, "families"),
        ({"mutants": RUNNING_TOTAL.mutants[:2]}, "2 mutants"),
        ({"mutants": RUNNING_TOTAL.mutants[:1] * 3}, "3 mutants"),
    ],
)
def test_each_fault_is_found(change: dict[str, object], fault: str):
    good = replace(RUNNING_TOTAL, hints=("What?", "As many.", "Add the one before."))
    assert faults(good) == []
    assert any(fault in found for found in faults(replace(good, **change)))


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (Mutant("gone", "no such text", ""), "its old text stands 0 times"),
        (Mutant("twice", "totals[index", ""), "its old text stands 2 times"),
        (Mutant("a space", "range(1, count)", "range(1,  count)"), "it changes nothing"),
        (Mutant("the same in other words", "range(1, count)", "range(1, len(values))"), "passes"),
        (Mutant("a stub", "totals = list(values)", "raise NotImplementedError"), "not attempted"),
    ],
)
def test_a_mutant_that_proves_nothing_is_found(mutant: Mutant, why: str):
    assert survives(RUNNING_TOTAL, mutant).startswith(why)
    assert [survives(RUNNING_TOTAL, good) for good in RUNNING_TOTAL.mutants] == ["", "", ""]


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="notebook '99' has no exercises; these have some: 01"):
        exercises("99")
    with pytest.raises(UsageError, match="notebook 01 has no exercise 'kv'; it has kv-bytes, decode-cost, ridge"):
        exercise("01", "kv")


def test_states_are_kept_where_the_lesson_says():
    kept = Kept()
    exercise("01", "ridge", kept).check(running_total)
    exercise("01", "ridge").check(running_total)
    assert kept.states == [("01", "ridge", FAILS)]
