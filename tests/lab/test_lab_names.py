"""Every name that `workbench.lab` offers may be the first one that somebody imports."""

from __future__ import annotations

import subprocess
import sys

EACH_FIRST = """
import importlib, sys
import workbench.lab
for module in sorted(set(workbench.lab._HOME.values())):
    for name in [name for name in sys.modules if name.startswith("workbench.lab.")]:
        del sys.modules[name]
    importlib.import_module(module)
    print(module)
"""


def test_each_module_of_the_lab_can_be_imported_first() -> None:
    done = subprocess.run([sys.executable, "-c", EACH_FIRST], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 10
