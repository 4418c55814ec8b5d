"""Bugs put into a module on purpose: one line changed, compiled, and handed to all who use the module's functions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from kernels.triton.interpreter import OutOfBounds

CAUGHT = (AssertionError, OutOfBounds, pytest.fail.Exception)
"""A wrong number, or an address that the checker refuses; not a bug that does not even run."""


class Bug(NamedTuple):
    module: ModuleType
    true: str
    false: str
    caught_by: Callable[[str], None]
    """Takes the device."""


def is_caught(
    bug: Bug, users: Sequence[ModuleType], folder: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> bool:
    """Whether the check fails by what it checks once the bug is in."""
    _plant(bug, users, folder, monkeypatch)
    found: BaseException | None = None
    try:
        bug.caught_by(device)
    except (Exception, pytest.fail.Exception) as error:
        found = error
    while found is not None and not isinstance(found, CAUGHT):
        found = found.__cause__
    return found is not None


def _plant(bug: Bug, users: Sequence[ModuleType], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles the module with its one line changed; whoever uses one of its functions uses that of the changed one."""
    text = Path(str(bug.module.__file__)).read_text(encoding="utf-8")
    assert text.count(bug.true) == 1, "the line has changed; so must the bug"
    path = folder / "planted.py"
    path.write_text(text.replace(bug.true, bug.false), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None and spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", planted)  # a dataclass looks for its module there
    spec.loader.exec_module(planted)
    own = dict(vars(bug.module))
    for user in users:
        for name, function in list(vars(user).items()):
            if function is own.get(name) and callable(function) and not isinstance(function, type):
                monkeypatch.setattr(user, name, vars(planted).get(name, function))
