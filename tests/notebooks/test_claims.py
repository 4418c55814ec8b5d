"""Every claim assigned to a notebook that exists has its verdict there, and each verdict names a cell that is there.

Read from the notebooks' files, without running them: the cell tagged ``claims`` calls ``lesson.claims({id: (verdict,
cell id)})`` with a literal.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from workbench.lab.claims import VERDICTS, claims_of

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))


def listed(notebook: nbformat.NotebookNode) -> list[dict[str, tuple[str, str]]]:
    """What the notebook's claims cells list: the literal of each call of ``lesson.claims`` in one."""
    cells = [c for c in notebook.cells if c.cell_type == "code" and "claims" in c.metadata.get("tags", [])]
    calls = [node for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "lesson.claims"]


def findings(number: str, notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a notebook's claims, each in a few words."""
    wanted = [claim.id for claim in claims_of(number)]
    lists = listed(notebook)
    if not wanted:
        return ["lists claims and has none"] if lists else []
    if len(lists) != 1:
        return [f"answers for {', '.join(wanted)} and has {len(lists)} calls of lesson.claims in cells tagged claims"]
    (verdicts,) = lists
    cells = {cell.id for cell in notebook.cells}
    found = [f"no verdict on {claim_id}" for claim_id in wanted if claim_id not in verdicts]
    found += [f"{claim_id} is not its claim" for claim_id in verdicts if claim_id not in wanted]
    found += [
        f"{claim_id}: {verdict} is no verdict" for claim_id, (verdict, _) in verdicts.items() if verdict not in VERDICTS
    ]
    return found + [f"{claim_id}: no cell {cell}" for claim_id, (_, cell) in verdicts.items() if cell not in cells]


def test_there_are_notebooks():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_claims_of_a_notebook(path: Path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert findings(path.stem[:2], notebook) == []


def made_up() -> nbformat.NotebookNode:
    """A notebook 01 that answers for its claims as it should."""
    source = 'lesson.claims({\n    "B1": ("confirmed here", "phases"),\n    "B2": ("depends on hardware", "batch"),\n})'
    cells = [nbformat.v4.new_code_cell("1", id=name) for name in ("phases", "batch")]
    cells.append(nbformat.v4.new_code_cell(source, id="claims-table", metadata={"tags": ["claims"]}))
    return nbformat.v4.new_notebook(cells=cells)


def _replace(old: str, new: str) -> Callable[[nbformat.NotebookNode], None]:
    def spoil(notebook: nbformat.NotebookNode) -> None:
        assert old in notebook.cells[-1].source
        notebook.cells[-1].source = notebook.cells[-1].source.replace(old, new)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda nb: nb.cells.pop(), "answers for B1, B2 and has 0 calls"),
        (lambda nb: nb.cells.append(copy.deepcopy(nb.cells[-1])), "has 2 calls"),
        (lambda nb: nb.cells[-1].metadata.tags.clear(), "has 0 calls"),
        (_replace('"B2": ("depends on hardware", "batch"),', ""), "no verdict on B2"),
        (_replace('"B2": (', '"B3": ('), "B3 is not its claim"),
        (_replace("confirmed here", "true"), "B1: true is no verdict"),
        (lambda nb: nb.cells.pop(0), "B1: no cell phases"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[nbformat.NotebookNode], None], expected: str):
    notebook = made_up()
    assert findings("01", notebook) == []
    spoil(notebook)
    assert any(expected in what for what in findings("01", notebook))


def test_a_notebook_without_claims_lists_none():
    assert findings("00", nbformat.v4.new_notebook()) == []
    assert findings("00", made_up()) == ["lists claims and has none"]
