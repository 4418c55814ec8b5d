"""Rules of the house that no tool knows: no machine's paths, no hosts, small files, no hidden time or chance."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 600_000
MAX_LINES = 400
TEXT = {".py", ".ipynb", ".md", ".toml", ".yml", ".yaml", ".json", ".cpp", ".h", ".sh", ".txt", ".cfg", ""}

# Written so that this file does not match itself.
FOLDERS = "|".join(["home", "root", "tmp", "opt", "work", "farm", "mnt", "Users"])
MACHINE_PATH = re.compile(rf"(?<![\w.}}])/(?:{FOLDERS})/")
HOSTS = "|".join(
    ["pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch\.org", "npmjs" + r"\.(?:org|com)"]
)
REGISTRY_HOST = re.compile(rf"(?:{HOSTS})", re.IGNORECASE)


def tracked() -> list[Path]:
    """Files that git tracks, and new ones that it would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def findings(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if hit := pattern.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {hit[0]}")
    return found


@pytest.fixture(autouse=True)
def _in_a_checkout():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")


def test_no_paths_of_a_machine():
    assert findings(MACHINE_PATH) == []


def test_no_registry_hosts():
    assert findings(REGISTRY_HOST) == []


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ('open("/' + 'home/ann/model")', True),
        ("see /" + "tmp/x", True),
        ("tests/" + "root/x", False),
        ("${X}/" + "tmp/", False),
    ],
)
def test_the_pattern_finds_paths_and_only_those(line, hit):
    assert bool(MACHINE_PATH.search(line)) is hit


def test_no_large_files():
    large = {str(path.relative_to(ROOT)): size for path in tracked() if (size := path.stat().st_size) >= MAX_BYTES}
    assert large == {}


def test_a_room_is_a_file_of_one_idea():
    files = [path for room in ("workbench", "kernels") for path in (ROOT / room).rglob("*.py")]
    assert files
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def hidden_inputs(source: str) -> list[str]:
    """Reads of the clock, of chance or of changing globals, and loops over sets, in one module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [
            f"line {node.lineno}: import {name}" for name in names if name in ("time", "random", "secrets", "uuid")
        ]
        if isinstance(node, ast.Global):
            found.append(f"line {node.lineno}: global {', '.join(node.names)}")
        loops = [node.iter] if isinstance(node, (ast.For, ast.comprehension)) else []
        for loop in loops:
            call = (
                isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name) and loop.func.id in ("set", "frozenset")
            )
            if call or isinstance(loop, (ast.Set, ast.SetComp)):
                found.append(f"line {loop.lineno}: a loop over a set")
    return found


def test_engine_and_blocks_get_time_and_chance_from_outside():
    """Only the clock itself may ask for the time."""
    files = [path for room in ("engine", "kv") for path in (ROOT / "workbench" / room).rglob("*.py")]
    assert len(files) > 3
    found = {path.name: hidden_inputs(path.read_text(encoding="utf-8")) for path in files if path.name != "clock.py"}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_hidden_inputs_are_found():
    source = "import time\nfrom random import random\ndef f():\n    global x\n    return [i for i in set([1])]\n"
    assert len(hidden_inputs(source)) == 4
    assert hidden_inputs("for i in sorted(set([1])): pass") == []
