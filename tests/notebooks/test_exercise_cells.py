"""The exercises of a notebook stand in it: skeleton, check and hints of each; and no notebook holds a solution."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import nbformat
import pytest

from tests.lab.exercise_made import RUNNING_TOTAL
from workbench.lab import exercise_source as source
from workbench.lab.course import notebooks
from workbench.lab.exercise import Exercise
from workbench.lab.exercises import NOTEBOOKS, exercises

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
CALL = re.compile(r"(?:(\w+)\s*=\s*)?\b\w+\.exercise\(\s*[\"']([^\"']*)[\"']\s*\)")


def findings(notebook: nbformat.NotebookNode, known: Mapping[str, Exercise]) -> list[str]:
    """What is wrong with the exercises of a notebook, each in a few words; ``known``: its exercises by id."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    named = {exercise: name for cell in code for name, exercise in CALL.findall(cell.source)}
    found = [f"there is no exercise {name!r}" for name in named if name not in known]
    for name, one in known.items():
        found += [f"{name}: {what}" for what in _of_exercise(notebook, code, named.get(name), one)]
    return found


def _of_exercise(
    notebook: nbformat.NotebookNode, code: list[nbformat.NotebookNode], variable: str | None, one: Exercise
) -> list[str]:
    found = []
    skeletons = [cell for cell in code if cell.source.strip() == one.skeleton.strip()]
    if len(skeletons) != 1:
        found.append(f"{len(skeletons)} cells hold its skeleton as it is")
    if not all("exercise" in cell.metadata.get("tags", []) for cell in skeletons):
        found.append("the skeleton's cell has no tag exercise")
    if not variable:
        found.append(f'no cell has name = lesson.exercise("{one.id}")')
    else:
        if not any(re.search(rf"\b{variable}\.check\(\s*{one.name}\b", cell.source) for cell in code):
            found.append(f"no cell checks {one.name}")
        if not any(f"{variable}.hint(" in cell.source for cell in notebook.cells):
            found.append("no cell mentions its hints")
    if any(answer in _squeezed(cell.source) for cell in notebook.cells for answer in _answers(one)):
        found.append("a cell holds the solution")
    return found


def _answers(one: Exercise) -> list[str]:
    """What stands in each gap, without spaces and line ends."""
    text = source.source_of(one.function)
    lines = text.splitlines()
    return [_squeezed("\n".join(lines[gap.begin + 1 : gap.end])) for gap in source.gaps(text)]


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("number", sorted({*NOTEBOOKS, *(path.name[:2] for path in FILES)}))
def test_notebook(number: str) -> None:
    files = [path for path in FILES if path.name.startswith(f"{number}_")]
    assert files, f"notebook {number} has exercises and is not there"
    known = exercises(number) if number in NOTEBOOKS else {}
    assert known or number not in NOTEBOOKS
    notebook = nbformat.read(files[0], as_version=nbformat.NO_CONVERT)
    assert findings(notebook, known) == []


def test_there_are_pairs() -> None:
    """Each notebook that is listed as having exercises has some, and belongs to the course."""
    assert {number: bool(exercises(number)) for number in NOTEBOOKS} == dict.fromkeys(NOTEBOOKS, True)
    assert NOTEBOOKS and set(NOTEBOOKS) <= {notebook.name[:2] for notebook in notebooks()}


# On a notebook made up for it, each fault is found.


def made(*all_of_them: Exercise) -> nbformat.NotebookNode:
    v4 = nbformat.v4
    cells = []
    for one in all_of_them:
        cells += [
            v4.new_markdown_cell(f"{one.title}. Stuck? `one.hint(1)`"),
            v4.new_code_cell(f'one = lesson.exercise("{one.id}")\none.spec'),
            v4.new_code_cell(one.skeleton.strip(), metadata={"tags": ["exercise"]}),
            v4.new_code_cell(f"one.check({one.name});"),
        ]
    return v4.new_notebook(cells=cells)


KNOWN = {RUNNING_TOTAL.id: RUNNING_TOTAL}


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_a_notebook_made_from_the_exercises_is_right(number: str) -> None:
    known = exercises(number)
    assert findings(made(*known.values()), known) == []
    assert len(findings(nbformat.v4.new_notebook(), known)) == 2 * len(known)


def _edit(cell: int, old: str, new: str) -> Callable[[nbformat.NotebookNode], None]:
    def edit(notebook: nbformat.NotebookNode) -> None:
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return edit


def _solved(notebook: nbformat.NotebookNode) -> None:
    notebook.cells[2].source = RUNNING_TOTAL.solution()


def _told(notebook: nbformat.NotebookNode) -> None:
    notebook.cells.append(nbformat.v4.new_markdown_cell(f"<details>\n\n```python\n{RUNNING_TOTAL.solution()}```"))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_edit(2, "values: list", "items: list"), "0 cells hold its skeleton"),
        (_edit(2, "your turn: add", "your turn: sum"), "0 cells hold its skeleton"),
        (_edit(3, "one.check(running_total)", "one.check(other)"), "no cell checks running_total"),
        (_edit(3, "one.check", "two.check"), "no cell checks running_total"),
        (_edit(0, "`one.hint(1)`", "Think."), "no cell mentions its hints"),
        (_edit(1, "one = ", ""), "no cell has name ="),
        (_edit(1, "running-total", "runing-total"), "there is no exercise 'runing-total'"),
        (lambda notebook: notebook.cells[2].metadata.tags.clear(), "no tag exercise"),
        (lambda notebook: notebook.cells.append(copy.deepcopy(notebook.cells[2])), "2 cells hold its skeleton"),
        (_solved, "0 cells hold its skeleton"),
        (_solved, "a cell holds the solution"),
        (_told, "a cell holds the solution"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[nbformat.NotebookNode], None], expected: str) -> None:
    notebook = made(RUNNING_TOTAL)
    assert findings(notebook, KNOWN) == []
    spoil(notebook)
    assert any(expected in what for what in findings(notebook, KNOWN))
