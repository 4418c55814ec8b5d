"""Building C++ kernels: once, side by side, and with a reason where it cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import build

ASK = "from kernels.cpu.build import cannot_run; print(cannot_run() or 'built')"


def ask(home: Path, **env: str) -> str:
    here = {**os.environ, "WORKBENCH_HOME": str(home), **env}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=here, check=True)
    return done.stdout.strip()


def test_it_is_built_once_and_kept(tmp_path: Path) -> None:
    assert ask(tmp_path) == "built"
    (kept,) = (tmp_path / "kernels").iterdir()
    # The second time no compiler is needed.
    when = kept.stat().st_mtime_ns
    assert ask(tmp_path) == "built" and kept.stat().st_mtime_ns == when
    assert ask(tmp_path, WORKBENCH_CPU_KERNELS="portable") == "built"
    assert len(list((tmp_path / "kernels").iterdir())) == 2


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    here = {**os.environ, "WORKBENCH_HOME": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, env=here) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == [b"built"] * 3
    assert len(list((tmp_path / "kernels").iterdir())) == 1


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"CXX": "no-such-compiler"}, "no-such-compiler"),
        ({"CXX": "false"}, "false failed"),
        ({"WORKBENCH_CPU_KERNELS": "none"}, "WORKBENCH_CPU_KERNELS=none"),
        ({"WORKBENCH_CPU_KERNELS": "sse9"}, "'sse9' is not one of auto, none, avx2, portable"),
    ],
)
def test_why_it_cannot_be_built(tmp_path: Path, env: dict[str, str], reason: str) -> None:
    assert reason in ask(tmp_path, **env)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    assert "cannot be built" in ask(tmp_path)


def test_a_damaged_library_is_told(tmp_path: Path) -> None:
    assert ask(tmp_path) == "built"
    next((tmp_path / "kernels").iterdir()).write_bytes(b"not a library")
    assert "cannot be loaded" in ask(tmp_path)


def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, expected in ((frozenset({"avx2", "fma", "f16c"}), "avx2"), (frozenset({"avx2"}), "portable")):
        monkeypatch.setattr(build, "_cpu_flags", lambda flags=flags: flags)
        monkeypatch.delenv("WORKBENCH_CPU_KERNELS", raising=False)
        assert build.build_name() == expected
