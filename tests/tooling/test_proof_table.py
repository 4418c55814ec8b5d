"""`proof.report` leaves a table at the end of a run, and a proof that fails is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

TESTS = """
def test_equal(proof):
    proof.report("prompts equal", "40/40")
    proof.report("ratio", 2.5)
def test_late_failure(proof):
    proof.report("tokens identical", "11/12")
    assert False
def test_early_failure(proof):
    assert False
def test_quiet():
    pass
"""


def run(tmp_path, tests, *options):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(tests, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_table(tmp_path, options):
    out = run(tmp_path, TESTS, *options).split("what was shown", 1)[1].splitlines()
    rows = [line.split() for line in out]
    assert ["test_equal", "prompts", "equal", "40/40"] in rows
    assert ["test_equal", "ratio", "2.5"] in rows
    assert ["test_late_failure", "tokens", "identical", "11/12", "FAILED"] in rows
    assert ["test_early_failure", "nothing:", "it", "failed", "before", "its", "report", "FAILED"] in rows
    assert not any("test_quiet" in line for line in out)


def test_no_table_where_nothing_was_reported(tmp_path):
    assert "what was shown" not in run(tmp_path, "def test_quiet():\n    pass\n")


def test_a_file_that_cannot_be_read_is_in_the_table_too(tmp_path):
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    out = run(tmp_path, TESTS, "--continue-on-collection-errors").split("what was shown", 1)[1].splitlines()
    rows = [line.split() for line in out]
    assert ["test_broken.py", "nothing:", "it", "failed", "before", "its", "report", "FAILED"] in rows
