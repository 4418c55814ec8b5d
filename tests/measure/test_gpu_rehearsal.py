"""`workbench bench gpu` from a copy of the tree on a machine that has little: no install, no checkout, no Jupyter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.lab.recorded import read_run
from workbench.measure.gpu.drive import ROOT
from workbench.measure.gpu.sections import SECTIONS

BARE = """
import sys
from importlib.machinery import PathFinder
MISSING = ("gguf", "IPython", "ipywidgets", "ipykernel", "jupyterlab", "jupyter_client", "nbformat", "nbclient",
           "nbval", "hypothesis", "accelerate", "pytest_timeout")
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in MISSING else super().find_spec(name, path, target)
sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""As a ``sitecustomize``: every Python that the run starts is without what a bare GPU machine lacks."""


TREE = ("workbench", "kernels", "tests", "notebooks", "pyproject.toml")
"""All that is copied: the rest of a checkout is not needed."""
LARGEST_TREE = 64 << 20
"""Bytes that can be carried to such a machine."""


def copied(to: Path) -> Path:
    to.mkdir()
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(ROOT / name, to)
    assert sum(path.stat().st_size for path in to.rglob("*")) < LARGEST_TREE
    return to


def rehearse(tree: Path, tmp_path: Path, *flags: str, seconds: float) -> dict[str, Any]:
    """What the run from ``tree`` leaves, after which all sections must be ok."""
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    environment = kept | {"PYTHONPATH": str(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1",
                          "WORKBENCH_HOME": str(tmp_path / "home")}  # fmt: skip
    command = [sys.executable, "-m", "workbench", "bench", "gpu", "--device", "cpu", "--tiny", "--out", str(out)]
    command += flags
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds)
    found = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, [one for one in found["sections"] if one["status"] not in ("ok", "left out")]
    assert "no number here is worth anything" in done.stdout
    assert 0 < len(list(out.iterdir())) <= 8
    return found


def test_the_first_section_rehearsed_on_a_bare_machine(tmp_path: Path) -> None:
    found = rehearse(ROOT, tmp_path, "--only", "device", "--commit", "abc123", seconds=600)
    assert found["provenance"]["torch"] and found["provenance"]["commit"] == "abc123"
    assert found["device"] and found["workload"]["tiny"] and found["goals"] == [], "no goals for a rehearsal"


@pytest.mark.slow
def test_the_whole_run_rehearsed_on_a_bare_machine(tmp_path: Path) -> None:
    found = rehearse(copied(tmp_path / "tree"), tmp_path, seconds=1800)
    run = read_run(tmp_path / "out" / "recorded_gpu.json")
    assert run.notebook == "gpu" and "rehearsal" in run.workload and run.provenance == found["provenance"]
    assert {"ceiling: copy", "ceiling: product"} <= set(run.values)
    rows = {one["name"]: one["rows"] for one in found["sections"]}
    assert [one["name"] for one in found["sections"]] == [one.name for one in SECTIONS]
    assert {row["contender"] for row in rows["attention"]} == {"workbench", "sdpa math", "flex"}
    assert {row["outcome"] for row in rows["correctness"]} == {"passed"}
    assert [row["graphs"] for row in rows["engine-qwen3-0.6b"] if "concurrency" in row] == [True, True, False, False]
    assert all(row["seconds"] > 0 for row in rows["compile"])
