"""The rooms that decide, and the configuration, import no torch: they run where none is installed."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ["torch", "numpy", "transformers", "triton", "tokenizers", "safetensors"]


def rooms(name: str) -> list[str]:
    """A package and every module in it."""
    folder = ROOT / name.replace(".", "/")
    return [name, *(module.name for module in pkgutil.walk_packages([str(folder)], prefix=f"{name}."))]


def loaded_by(modules: list[str]) -> list[str]:
    """Which of HEAVY a fresh interpreter has loaded after importing ``modules``."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "modules",
    [
        ["workbench"],
        ["workbench.model"],
        ["workbench.model.config"],
        rooms("workbench.engine"),
        rooms("workbench.kv"),
        ["workbench.doctor", "workbench.errors", "workbench.plan", "workbench.sampling_params"],
    ],
    ids=lambda modules: modules[0],
)
def test_importing_loads_nothing_heavy(modules):
    assert loaded_by(modules) == []


def test_the_simulator_loads_no_model_code():
    # numpy computes percentiles of the metrics; it comes without torch.
    assert set(loaded_by(rooms("workbench.simulate"))) <= {"numpy"}


def test_the_probe_sees_what_is_imported():
    assert loaded_by(["numpy"]) == ["numpy"]
