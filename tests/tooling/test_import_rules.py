"""The import rules hold, and each can fail: a copy of the tree with one violation per rule breaks all of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

VIOLATIONS = {
    "layers": ("workbench/kv/pool.py", "import workbench.llm"),
    "decide-without-doing": ("workbench/engine/clock.py", "import torch"),
    "do-without-deciding": ("workbench/model/config.py", "import workbench.kv.pool"),
    "light-floor": ("workbench/errors.py", "import torch"),
    "simulate-without-torch": ("workbench/simulate/chips.py", "import workbench.measure.hardware"),
    "kernels-alone": ("kernels/triton/__init__.py", "import workbench.errors"),
}


@pytest.fixture
def copy(tmp_path):
    for name in ("workbench", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> tuple[int, set[str]]:
    """Exit status and the names of the broken contracts."""
    command = [sys.executable, "-c", LINT, "--no-cache"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    lines = [line.strip() for line in done.stdout.splitlines()]
    names = {contract["name"]: contract["id"] for contract in CONTRACTS}
    # A contract that ignores an import says so behind the word.
    broken, kept = (
        {key for name, key in names.items() if any(line.startswith(f"{name} {word}") for line in lines)}
        for word in ("BROKEN", "KEPT")
    )
    assert broken | kept == set(names.values()), done.stdout + done.stderr
    return done.returncode, broken


def test_every_rule_can_fail(copy):
    assert set(VIOLATIONS) == {contract["id"] for contract in CONTRACTS}
    assert lint(copy) == (0, set())
    for path, line in VIOLATIONS.values():
        with (copy / path).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    assert lint(copy) == (1, set(VIOLATIONS))


def test_a_module_without_a_layer_is_refused(copy):
    (copy / "workbench/stray.py").write_text('"""No layer names this."""\n', encoding="utf-8")
    status, broken = lint(copy)
    assert status == 1 and broken == {"layers"}
