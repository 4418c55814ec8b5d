"""Figures of kernels compiled before, each in a small file under the hash of everything that decides them.

They lie beside the compiled C++ kernels, in ``WORKBENCH_HOME/kernels/inspect``. Deleting that folder costs time only.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from kernels.compile.made import Made
from kernels.cpu.build import home


def folder() -> Path:
    return home() / "kernels" / "inspect"


def get(key: str) -> Made | None:
    """None where nothing is kept, or what is kept cannot be read."""
    try:
        return Made.of(json.loads((folder() / f"{key}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def put(key: str, made: Made) -> None:
    """Whole or not at all: several processes may keep the same at once. A full disk is no reason to fail."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), suffix=".new", delete=False, encoding="utf-8") as file:
            json.dump(made.brief(), file)
        os.replace(file.name, folder() / f"{key}.json")
    except OSError:
        pass
