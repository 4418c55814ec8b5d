"""What is kept is not compiled again; a compiler that dies or never ends fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.compile import cache, farm, find
from kernels.compile.made import Made

MADE = Made(registers=40, warps=4, shared=0, loads={"128": 2})


def jobs(*names: str) -> list[farm.Job]:
    return [farm.Job(find.Found("nowhere", name, None), "sm_80") for name in names]  # type: ignore[arg-type]


def test_only_what_changed_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    sources = {None: "first"}
    compiled: list[int] = []

    def compile_all(wanted, workers, seconds):
        for number, job in wanted:
            compiled.append(number)
            yield number, farm.Outcome(job, MADE)

    monkeypatch.setattr(farm, "key", lambda variant, arch: f"{sources[variant]}-{arch}")
    monkeypatch.setattr(farm, "_compile_all", compile_all)
    assert [one.cached for one in farm.measure(jobs("a.v"))] == [False]
    again = farm.measure(jobs("a.v"))
    assert [(one.cached, one.made) for one in again] == [(True, MADE)]
    assert compiled == [0]
    sources[None] = "second"
    assert [one.cached for one in farm.measure(jobs("a.v"))] == [False]
    (kept,) = (path for path in cache.folder().glob("second*.json"))
    kept.write_text("{", encoding="utf-8")
    assert [one.cached for one in farm.measure(jobs("a.v"))] == [False], "half a file is no figure"
    assert not list(tmp_path.rglob("*.new"))


def test_a_failure_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(farm, "key", lambda variant, arch: "same")
    failed = lambda wanted, workers, seconds: ((number, farm.Outcome(job, None, "no")) for number, job in wanted)
    monkeypatch.setattr(farm, "_compile_all", failed)
    assert [one.error for one in farm.measure(jobs("a.v"))] == ["no"]
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow  # starts a server that loads torch and Triton
def test_a_compiler_that_dies_or_hangs_fails_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(farm, "key", lambda variant, arch: variant)
    for name, does in {"dies": "import os\nos._exit(7)\n", "hangs": "import time\ntime.sleep(600)\n"}.items():
        (tmp_path / f"{name}.py").write_text(does, encoding="utf-8")
    wanted = [
        farm.Job(find.Found(str(tmp_path / f"{name}.py"), f"{name}.v", name), "sm_80")  # type: ignore[arg-type]
        for name in ("hangs", "dies")
    ]
    hangs, dies = farm.measure(wanted, workers=2, seconds=20)
    assert (hangs.made, hangs.error) == (None, "not compiled after 20 s")
    assert (dies.made, dies.error) == (None, "the compiler crashed (exit status 7)")
