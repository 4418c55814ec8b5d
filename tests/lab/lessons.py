"""A lesson for tests: made by the real `start`, with everything it keeps in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.lab import recorded
from workbench.lab.lesson import Lesson, start

VARIABLES = ("WORKBENCH_PROGRESS", "WORKBENCH_TURN_OFF", "WORKBENCH_MODEL")


def begin(
    monkeypatch: pytest.MonkeyPatch, folder: Path, number: str = "01", tier: str = "cpu", **variables: str
) -> Lesson:
    """`start(number)` on the CPU. Progress, the canary's answer and recorded runs lie under ``folder``."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = {"WORKBENCH_HOME": str(folder), "WORKBENCH_DEVICE": "cpu", "WORKBENCH_TIER": tier, **variables}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(recorded, "FOLDER", folder / "recorded")
    # Which way kernels run is this whole process's, and a test's lesson does not choose it.
    monkeypatch.setattr("workbench.lab.lesson.interpret", lambda mode: "")
    return start(number)
