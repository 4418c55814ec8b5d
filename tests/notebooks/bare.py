"""`python -m workbench.lab.run` in a process that can import nothing of Jupyter, as on a bare GPU machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workbench.lab import cells

BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("IPython", "ipywidgets", "ipykernel", "jupyter_client", "nbformat", "nbclient"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from workbench.lab.run import main
sys.exit(main(sys.argv[1:]))
"""
KEPT = ("WORKBENCH_HOME", "WORKBENCH_MODEL")
"""Where the model lies; nothing else that a reader may have set."""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:10] != "WORKBENCH_" or name in KEPT}
    environment["PYTHONPATH"] = str(cells.folder().parent)
    command = [sys.executable, "-c", BARE, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def reported(path: Path, folder: Path, *flags: str) -> dict[str, Any]:
    """What it reports of a notebook on the CPU at tier tiny; ``folder`` holds the report."""
    file = folder / "report.json"
    file.unlink(missing_ok=True)
    done = bare(str(path), "--device", "cpu", "--tier", "tiny", "--json", str(file), *flags)
    assert file.is_file(), done.stderr
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert done.returncode == (0 if told["ok"] else 1), done.stderr
    return told
