"""`notebooks/conftest.py` at work: a failing cell fails the run, and what is skipped says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLAGS = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-p", "no:xdist", "-p", "no:cacheprovider"]


def run(folder: Path, *sources: str, **metadata: object) -> tuple[int, str]:
    """Exit status and output of the notebooks' test command on one notebook, beside a copy of the real conftest."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "workbench": metadata}
    nbformat.write(notebook, folder / "99_test.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    command = [sys.executable, "-m", "pytest", "-rs", "-c", os.devnull, "--rootdir", str(folder), *FLAGS, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_tier_is_tiny_and_exercises_are_graded(tmp_path):
    status, output = run(
        tmp_path,
        "import os",
        "assert os.environ['WORKBENCH_TIER'] == 'tiny'",
        "assert os.environ['WORKBENCH_GRADE'] == 'reference'",
    )
    assert (status, "3 passed" in output) == (0, True), output


def test_a_failing_cell_fails_and_the_rest_is_skipped(tmp_path):
    status, output = run(tmp_path, "x = 1", "assert x == 2, 'two of them'", "print(y)", "z")
    assert status == 1, output
    assert "1 failed, 1 passed, 2 skipped" in output
    assert "two of them" in output
    assert "of this notebook failed" in output


def test_a_cell_that_hangs_fails_at_the_notebooks_own_limit(tmp_path):
    status, output = run(tmp_path, "import time; time.sleep(100)", "x = 1", cell_timeout_s=2)
    assert status == 1, output
    assert "1 failed, 1 skipped" in output


def test_a_notebook_for_cuda_is_skipped_with_the_reason(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    status, output = run(tmp_path, "raise RuntimeError", device="cuda")
    assert status == 0, output
    assert "1 skipped" in output
    assert "needs a CUDA device" in output
