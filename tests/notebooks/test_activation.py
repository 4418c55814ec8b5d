"""Each notebook notices when its feature is off: run with it turned off, it fails where it measures, and only there.

A notebook names the engine options that turn its feature off (``metadata.workbench.turn_off``). A measurement whose
assert holds without the feature has shown nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.bare import reported
from tests.notebooks.made_up import made_up
from workbench.lab import cells
from workbench.lab.run import run

NOTEBOOKS = [notebook for path in sorted(cells.folder().glob("*.ipynb")) if (notebook := cells.read(path)).turn_off]
Report = dict[str, Any]
FEATURE = "import json, os\n\noff = json.loads(os.environ.get('WORKBENCH_TURN_OFF', '{}'))\nseats = off.get('seats', 8)"


def findings(notebook: cells.NotebookFile, on: Report, off: Report) -> list[str]:
    """What is wrong with the reports of a run as it is and of one with the feature off; empty when nothing is."""
    found = [f"as it is, {cell['id']} fails: {cell['error']}" for cell in on["cells"] if not cell["ok"]]
    failed = [cell for cell in off["cells"] if not cell["ok"]]
    if not failed:
        return [*found, f"turned off by {dict(notebook.turn_off)}, no cell notices"]
    tags = {cell.id: cell.tags for cell in notebook.cells}
    for cell in failed:
        if "measure" not in tags[cell["id"]]:
            found.append(f"turned off, {cell['id']} fails, which is not tagged measure: {cell['error']}")
        elif cell["error"]["type"] != "AssertionError":
            found.append(f"turned off, {cell['id']} fails by {cell['error']}, not by an assert")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_notices_when_its_feature_is_off(notebook: cells.NotebookFile, tmp_path: Path):
    assert findings(notebook, reported(notebook.path, tmp_path), reported(notebook.path, tmp_path, "--turn-off")) == []


@pytest.mark.slow
def test_the_command_and_the_call_report_the_same(tmp_path: Path):
    notebook = made_up(tmp_path, {"set-up": FEATURE, "sweep": "assert seats > 1"}, {"sweep": ["measure"]}, SEATS)
    assert findings(notebook, reported(notebook.path, tmp_path), reported(notebook.path, tmp_path, "--turn-off")) == []


SEATS = {"turn_off": {"seats": 1}}


@pytest.mark.parametrize(
    ("sweep", "after", "expected"),
    [
        ("assert seats > 1", "x = 1", ""),
        ("assert seats > 0", "x = 1", "no cell notices"),
        ("[0, 0][seats - 7]", "x = 1", "fails by {'type': 'IndexError'"),
        ("seats", "assert seats > 1", "which is not tagged measure"),
        ("assert seats > 1", "assert False", "as it is, after fails"),
        ("assert seats < 2", "x = 1", "as it is, sweep fails"),
    ],
)
def test_the_judge_sees_each_way_of_not_noticing(tmp_path: Path, sweep: str, after: str, expected: str):
    sources = {"set-up": FEATURE, "sweep": sweep, "after": after}
    notebook = made_up(tmp_path, sources, {"sweep": ["measure"]}, SEATS)
    on, off = (run(notebook, "cpu", "tiny", turn_off).to_dict() for turn_off in (False, True))
    found = findings(notebook, on, off)
    assert any(expected in what for what in found) if expected else found == []
