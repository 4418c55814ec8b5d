"""Whatever a notebook shows of a simulated run says so, in the cell that shows it: nobody takes it for a measurement.

Read from the file: a name is simulated where it is made from a simulated engine or from what one gave.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.notebooks.made_up import made_up
from workbench.lab import cells
from workbench.lab.cells import NotebookCell, NotebookFile, joined

SOURCES = {
    "simulated_engine",
    "simulated_steps",
    "simulate",
    "what_if",
    "highest_rate",
    "ChipCost",
    "FixedCost",
    "simulate_tile",
}
WORD = "simulated"
SHOWING = {"print", "show"}
FIRST = "04"
"""Earlier notebooks say it once for several cells."""
NOTEBOOKS = [
    notebook for path in sorted(cells.folder().glob("*.ipynb")) if (notebook := cells.read(path)).number >= FIRST
]


def findings(notebook: NotebookFile) -> list[str]:
    """Ids of the cells that show something simulated and do not say so."""
    found, simulated = [], set(SOURCES)
    for cell in notebook.code:
        shows = False
        tree = ast.parse(cell.source)
        for statement in tree.body:
            used, made = _names(statement)
            last = statement is tree.body[-1] and isinstance(statement, ast.Expr)
            if used & simulated:
                simulated |= made
                shows = shows or last or bool(used & SHOWING and not isinstance(statement, ast.FunctionDef))
            else:
                simulated -= made - SOURCES
        if shows and WORD not in _said(cell, tree):
            found.append(cell.id)
    return found


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Names that a statement takes from before it, and those it makes or adds something to (``rows.append(…)``)."""
    used, made, own = set(), set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.comprehension, ast.For)):
            own |= _stored(node.target)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            made.add(node.value.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            made |= {part.id for part in [node.func.value] if isinstance(part, ast.Name)}
    if isinstance(statement, ast.FunctionDef):  # what it calls its own names stays inside
        return used - own - made, {statement.name}
    return used - own, made


def _stored(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _said(cell: NotebookCell, tree: ast.Module) -> str:
    """All texts of a cell, in its source and in its outputs, in lower case."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for output in cell.outputs:
        data = {"text/plain": output.get("text", ""), **output.get("data", {})}
        texts += [joined(text) for kind, text in data.items() if kind.startswith("text/")]
    return " ".join(texts).lower()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_what_is_simulated_says_so(notebook: NotebookFile) -> None:
    assert findings(notebook) == []


def test_there_is_something_to_look_at() -> None:
    assert NOTEBOOKS and any(source in cell.source for cell in NOTEBOOKS[0].code for source in SOURCES)


ENGINE = "def virtual(**o):\n    return simulated_engine(o)\n\n\nrun = virtual()"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("run", ["last"]),
        ("print(run)", ["last"]),
        ("rows = []\nfor t in run:\n    rows.append(t)\nTable(rows)", ["last"]),
        ("found = {}\nfound['a'] = virtual()\nshow(found)", ["last"]),
        ("Table(run, 'simulated on an H100')", []),
        ("print('Simulated:', run)", []),
        ("other = run.traces", []),
        ("run = measured()\nrun", []),
        ("print('measured', 3)", []),
        ("def told():\n    print(run)", []),
        ("def told(run):\n    return [one for one in run]\n\n\nprint(told(3))", []),
        ("for run in (1, 2):\n    print(run)", []),
    ],
)
def test_the_judge_sees_what_is_shown(tmp_path: Path, last: str, expected: list[str]) -> None:
    assert findings(made_up(tmp_path, {"engine": ENGINE, "last": last}, {})) == expected
