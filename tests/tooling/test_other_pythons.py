"""The rooms without torch also run on Python 3.12 and 3.13: tests/engine and tests/kv, where only pytest and hypothesis
are installed. Both folders therefore import nothing heavy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["tests/engine", "tests/kv"]


def interpreter(version: str) -> str | None:
    """A Python of this version that can make environments, on PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    probe = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        if candidate is not None:
            done = subprocess.run([str(candidate), "-c", probe], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return str(candidate)
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_engine_and_blocks_on_another_python(version, tmp_path):
    base = interpreter(version)
    if base is None:
        pytest.skip(f"no Python {version} with venv on this machine")
    python = tmp_path / "venv/bin/python"
    subprocess.run([base, "-m", "venv", str(tmp_path / "venv")], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / ".ci/constraints.txt")]
    done = subprocess.run([*install, "pytest", "pytest-timeout", "hypothesis"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    has_torch = subprocess.run([str(python), "-c", "import torch"], capture_output=True, check=False)
    assert has_torch.returncode != 0, "the environment must show what runs without torch"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
