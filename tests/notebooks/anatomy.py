"""The parts that a lesson has, as rules over a notebook's tags and the syntax of its cells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from workbench.lab.cells import NotebookCell, NotebookFile

ANYWHERE = ("promise", "limit", "recall")
IN_CODE = ("budget", "predict", "walk", "measure", "explore", "exercise", "loses", "break-it", "scoreboard")
"""These parts are something the reader runs; prose around them may carry the tag too. The cell tagged ``claims`` is
asked for by the list of claims itself: a notebook that has none of them needs no such cell."""
NOT_IN_00 = {
    "explore": "it shows the course; its first widget needs the words that it explains",
    "exercise": "nothing has been taught yet",
    "scoreboard": "nothing has been measured yet that a later notebook improves",
}
"""What the orientation notebook does without, and why."""
_FOLDED = re.compile(r"<details>\s*<summary>Answers</summary>\n\n(.*?)\n\n</details>", re.DOTALL)
_NUMBERED = re.compile(r"^(\d+)\. ", re.MULTILINE)
TIME_WORDS = frozenset(
    {"time", "times", "timing", "timings", "second", "seconds", "duration", "durations", "elapsed", "latency", "ttft",
     "itl", "tpot", "e2e", "e2el", "throughput", "bandwidth"}
)  # fmt: skip
TIME_UNITS = frozenset({"s", "ms", "us", "ns"})
"""Units, as the last part of a name: ``step_ms``."""


def required(number: int) -> dict[str, bool]:
    """The tags that a notebook must have, each with whether it must stand on a code cell."""
    tags = {**dict.fromkeys(ANYWHERE, False), **dict.fromkeys(IN_CODE, True)}
    return {tag: code for tag, code in tags.items() if number or tag not in NOT_IN_00}


def anatomy(notebook: NotebookFile) -> list[str]:
    """Every part that is missing or does not do what its tag says; empty when all is there."""
    found = []
    for tag, in_code in required(int(notebook.number)).items():
        if not any(tag in cell.tags for cell in (notebook.code if in_code else notebook.cells)):
            found.append(f"no {'code ' if in_code else ''}cell is tagged {tag}")
    if not notebook.code or not _starts_lesson(_tree(notebook.code[0]), notebook.number):
        found.append(f'the first code cell is not: lesson = start("{notebook.number}")')
    for index, cell in enumerate(notebook.cells):
        if "predict" in cell.tags:
            following = next((later for later in notebook.cells[index:] if later.kind == "code"), None)
            if following is None or not _calls(following, "predict"):
                found.append(f"{cell.id}: tagged predict and not followed by lesson.predict")
    for cell in notebook.code:
        found += [f"{cell.id}: {what}" for what in _of_code(cell)]
    for cell in notebook.cells:
        if "recall" in cell.tags:
            found += _of_recall(cell)
    return found


def without_answers(markdown: str) -> str:
    """The text of a cell without what it folds away."""
    return _FOLDED.sub("", markdown)


def _of_recall(cell: NotebookCell) -> Iterator[str]:
    """Each question has its answer, folded away below them all."""
    questions = _NUMBERED.findall(without_answers(cell.source))
    answers = [number for folded in _FOLDED.findall(cell.source) for number in _NUMBERED.findall(folded)]
    if not questions:
        yield f"{cell.id}: tagged recall and asks nothing"
    if questions != answers:
        asked, answered = ", ".join(questions), ", ".join(answers)
        yield f"{cell.id}: the questions are {asked} and the answers folded below them {answered}"


def _of_code(cell: NotebookCell) -> Iterator[str]:
    asserts = [node for node in ast.walk(_tree(cell)) if isinstance(node, ast.Assert)]
    if "measure" in cell.tags and not asserts:
        yield "tagged measure and asserts nothing"
    for node in asserts:
        if any(_times_a_literal(compare) for compare in ast.walk(node.test) if isinstance(compare, ast.Compare)):
            yield f"the assert compares a time with a literal: {ast.unparse(node)}"
    tripped = [node for node in ast.walk(_tree(cell)) if isinstance(node, ast.With) and _must_trip(node)]
    if "break-it" in cell.tags and not tripped:
        yield "tagged break-it without: with lesson.must_trip(error, words)"
    for name in ("scoreboard", "claims", "must_trip"):
        tag = "break-it" if name == "must_trip" else name
        if _calls(cell, name) and tag not in cell.tags:
            yield f"calls lesson.{name} and is not tagged {tag}"
        if name != "must_trip" and tag in cell.tags and not _calls(cell, name):
            yield f"tagged {tag} and does not call lesson.{name}"


def _tree(cell: NotebookCell) -> ast.Module:
    """Empty for a cell that is no plain Python; the rules of form name it."""
    try:
        return ast.parse(cell.source)
    except SyntaxError:
        return ast.Module([], [])


def _starts_lesson(tree: ast.Module, number: str) -> bool:
    """Imports may stand before it, nothing else beside it."""
    rest = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return len(rest) == 1 and ast.unparse(rest[0]) == f"lesson = start({number!r})"


def _calls(cell: NotebookCell, name: str) -> bool:
    return any(_is_lessons(node, name) for node in ast.walk(_tree(cell)))


def _is_lessons(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"lesson.{name}"


def _must_trip(node: ast.With) -> bool:
    return any(
        _is_lessons(item.context_expr, "must_trip") and len(item.context_expr.args) == 2  # type: ignore[attr-defined]
        for item in node.items
    )


def _times_a_literal(compare: ast.Compare) -> bool:
    sides = [compare.left, *compare.comparators]
    return any(
        (_is_time(left) and _is_literal(right)) or (_is_literal(left) and _is_time(right))
        for left, right in pairwise(sides)
    )


def _is_literal(node: ast.expr) -> bool:
    """A number written down. Zero is none: that a time is positive is true everywhere."""
    names = any(isinstance(part, (ast.Name, ast.Attribute, ast.Call)) for part in ast.walk(node))
    numbers = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return not names and any(isinstance(number, (int, float)) and number != 0 for number in numbers)


def _is_time(node: ast.expr) -> bool:
    """Whether an expression speaks of a time or a rate. The ratio of two is neither; nor is how many there are."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_time(node.left) and _is_time(node.right):
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
        return False
    if isinstance(node, ast.Name) and _names_time(node.id):
        return True
    if isinstance(node, ast.Attribute) and _names_time(node.attr):
        return True
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_time(node.value):
        return True
    return any(_is_time(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)) or any(
        _is_time(part.iter) for part in ast.iter_child_nodes(node) if isinstance(part, ast.comprehension)
    )


def _names_time(name: str) -> bool:
    parts = re.split(r"[^a-z0-9]+", name.lower())
    return bool(TIME_WORDS & set(parts)) or (len(parts) > 1 and parts[-1] in TIME_UNITS)
