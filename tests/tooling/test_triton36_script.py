"""`.ci/triton36.sh` with a Python that only takes notes: what it installs, in which order, and when it does nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Answers what the script asks. Installing while the path file is there already would take packages out of .venv.
PYTHON = """#!/usr/bin/env bash
own=.triton36/site-packages
case "$*" in
  *purelib*) case "$0" in .triton36/*) echo "$own" ;; *) echo /packages/of/venv ;; esac ;;
  -V) echo Python 3.11.9 ;;
  "-m venv"*) mkdir -p .triton36/bin "$own" && cp "$0" .triton36/bin/python ;;
  "-m pip"*) if [ -e "$own/beside.pth" ]; then echo TOO LATE >>calls; fi; echo "$*" >>calls; [ ! -e pip-fails ] ;;
  *) : ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with the script, its list and a Python that takes notes."""
    (tmp_path / ".ci").mkdir()
    for name in ("triton36.sh", "triton36.txt"):
        shutil.copy(ROOT / ".ci" / name, tmp_path / ".ci")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    return tmp_path


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([".ci/triton36.sh"], cwd=checkout, capture_output=True, text=True, timeout=60)


def calls(checkout: Path) -> list[str]:
    path = checkout / "calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_it_installs_once_and_puts_the_other_packages_behind(checkout):
    done = run(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing triton==3.6.0 numpy==" in done.stdout
    (pip,) = calls(checkout)
    assert "--python .triton36/bin/python install" in pip and "--no-deps" in pip
    beside = checkout / ".triton36/site-packages/beside.pth"
    assert beside.read_text(encoding="utf-8") == "/packages/of/venv\n"
    assert run(checkout).stdout == ""
    assert len(calls(checkout)) == 1


def test_it_begins_anew_when_the_list_changes_or_it_was_not_finished(checkout):
    run(checkout)
    with (checkout / ".ci/triton36.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    (checkout / "pip-fails").touch()
    failed = run(checkout)
    assert failed.returncode == 1 and failed.stderr.startswith("triton36: ")
    (checkout / "pip-fails").unlink()
    assert run(checkout).returncode == 0
    assert len(calls(checkout)) == 3 and "TOO LATE" not in calls(checkout)


def test_without_the_main_environment_it_says_what_to_do(checkout):
    (checkout / ".venv/bin/python").unlink()
    done = run(checkout)
    assert (done.returncode, done.stderr) == (1, "triton36: there is no .venv yet: make setup first\n")
