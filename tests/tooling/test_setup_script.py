"""`make setup` on machines that lack something: one line that names the remedy, and no half-made environment believed.

The script itself runs, in a copy of the folder, against stand-ins for python, pip and df that fail in the chosen way.
"""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Answers as `$VERSION`; makes an environment whose python is itself again; logs every pip call; fails as `$PIP_SAYS`.
FAKE_PYTHON = """#!/bin/bash
here=$0
case "$*" in
  "-c import ensurepip"*) [ -z "$NO_ENSUREPIP" ] && echo "$VERSION" || exit 1 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$here" "$3/bin/python" && cp "$here" "$3/bin/workbench" ;;
  "-m pip "*) echo "$*" >>"$CALLS"; if [ -n "$PIP_SAYS" ]; then echo "$PIP_SAYS"; exit 1; fi ;;
  "-c import torch"*) echo "$TORCH_KIND" ;;
  "-c import hashlib"*) sha256sum | cut -d' ' -f1 ;;
  "-c import sys; sys.exit"*) exit 0 ;;
  "-V") echo "Python $VERSION.7" ;;
  "model fetch"*|"doctor"*) echo "$*" >>"$CALLS" ;;
esac
"""

TOOLS = [
    "bash",
    "basename",
    "dirname",
    "cat",
    "grep",
    "sed",
    "awk",
    "tail",
    "rm",
    "mv",
    "cp",
    "mkdir",
    "cut",
    "sha256sum",
    "sort",
]


@pytest.fixture
def machine(tmp_path):
    """A copy of what setup reads, and a PATH that holds only its tools and the stand-ins."""
    project, tools = tmp_path / "project", tmp_path / "tools"
    shutil.copytree(ROOT / ".ci", project / ".ci")
    shutil.copy(ROOT / "pyproject.toml", project)
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    df = tools / "df"
    df.write_text(
        '#!/bin/bash\necho "Filesystem 1M Used Available Capacity Mounted"; echo "disk 1 1 ${FREE_MIB} 1% /"\n'
    )
    python = tools / "python3.11"
    python.write_text(FAKE_PYTHON)
    for file in (df, python):
        file.chmod(file.stat().st_mode | stat.S_IEXEC)

    class Machine:
        calls = tmp_path / "calls"
        venv = project / ".venv"
        path = tools
        folder = project

        def setup(self, *extras, **env):
            self.calls.write_text("")
            settings = {"VERSION": "3.11", "FREE_MIB": "99999", "TORCH_KIND": "cpu", "CALLS": str(self.calls)}
            settings |= {"PATH": str(tools), "HOME": str(tmp_path), **env}
            command = [str(project / ".ci/setup.sh"), *extras]
            return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)

        def called(self):
            return self.calls.read_text().splitlines()

    return Machine()


def only_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_a_whole_setup_then_a_quick_second_one(machine):
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    torch, project, fetch, doctor = machine.called()
    assert torch.endswith("-c .ci/constraints-cuda.txt torch")
    assert project.endswith("-c .ci/constraints.txt -c .ci/constraints-cpu.txt -e .[dev]")
    assert (fetch, doctor) == ("model fetch", "doctor")
    assert machine.setup().returncode == 0
    assert machine.called() == ["model fetch", "doctor"], "nothing changed, so nothing may be installed"
    machine.setup(SKIP_DOCTOR="1")
    assert machine.called() == ["model fetch"]


def test_a_cuda_build_of_torch_keeps_its_own_triton(machine):
    machine.setup(TORCH_KIND="cuda")
    assert machine.called()[1].endswith("-c .ci/constraints.txt -c .ci/constraints-cuda.txt -e .[dev]")


def test_what_decides_the_installation_is_watched(machine):
    machine.setup()
    machine.setup("dev", "browser")
    assert machine.called()[1].endswith("-e .[browser,dev]")
    machine.setup("dev")
    assert machine.called() == ["model fetch", "doctor"], "fewer extras than there are need nothing"
    for name in ("pyproject.toml", ".ci/constraints.txt", ".ci/constraints-cpu.txt"):
        machine.setup()
        with (machine.folder / name).open("a") as file:
            file.write("# changed\n")
        machine.setup()
        assert len(machine.called()) == 4, f"a change of {name} must install again"


def test_an_install_that_stopped_is_not_believed(machine):
    assert machine.setup(PIP_SAYS="ERROR: boom").returncode == 1
    assert machine.setup().returncode == 0
    assert len(machine.called()) == 4


def test_no_python(machine):
    (machine.path / "python3.11").unlink()
    done = machine.setup()
    assert done.returncode == 1 and not machine.venv.exists()
    assert "Python 3.11 was not found" in only_line(done.stderr) and "PYTHON=" in done.stderr


def test_python_without_its_venv_package(machine):
    done = machine.setup(NO_ENSUREPIP="1")
    assert done.returncode == 1
    assert "apt install python3.11-venv" in only_line(done.stderr)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_newer_python_is_taken_with_a_notice(machine, version):
    (machine.path / "python3.11").rename(machine.path / f"python{version}")
    done = machine.setup(VERSION=version)
    assert done.returncode == 0, done.stderr
    assert f"Python {version} is untested" in done.stdout


def test_a_too_new_python_is_not_taken(machine):
    (machine.path / "python3.11").rename(machine.path / "python3")
    assert machine.setup(VERSION="3.14").returncode == 1


def test_little_disk(machine):
    done = machine.setup(FREE_MIB="3000")
    assert done.returncode == 1 and not machine.venv.exists()
    assert "3000 MiB" in only_line(done.stderr) and "6144 MiB" in done.stderr


@pytest.mark.parametrize(
    ("pip", "said"),
    [
        ("WARNING: Retrying: NewConnectionError('...: Failed to establish a new connection')", "no network"),
        ("WARNING: Retrying: NameResolutionError", "no network"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk filled up"),
        ("ERROR: No matching distribution found for torch==2.13.0", "No matching distribution found for torch"),
    ],
)
def test_pip_failures_become_one_line(machine, pip, said):
    done = machine.setup(PIP_SAYS=pip)
    assert done.returncode == 1
    line = only_line(done.stderr)
    assert said in line and "log: .venv/setup.log" in line


def test_a_broken_environment_is_made_anew(machine):
    machine.setup()
    (machine.venv / "bin/python").unlink()
    done = machine.setup()
    assert done.returncode == 0 and "making a new environment" in done.stdout
    assert len(machine.called()) == 4
