"""The exercises of the course, by notebook: one module each, ``nb01.py``, with a tuple ``EXERCISES``."""

from __future__ import annotations

from importlib import import_module

from workbench.errors import UsageError
from workbench.lab.exercise import Exercise, Progress

NOTEBOOKS = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "14", "15")
"""Numbers of the notebooks that have exercises."""


def exercises(notebook: str) -> dict[str, Exercise]:
    """The exercises of a notebook by id, in their order. Raises UsageError naming the notebooks that have some."""
    if notebook not in NOTEBOOKS:
        raise UsageError(f"notebook {notebook!r} has no exercises; these have some: {', '.join(NOTEBOOKS)}")
    found: tuple[Exercise, ...] = import_module(f"{__name__}.nb{notebook}").EXERCISES
    return {exercise.id: exercise for exercise in found}


def exercise(notebook: str, exercise_id: str, progress: Progress | None = None) -> Exercise:
    """One exercise, whose states are recorded in ``progress``. Raises UsageError listing the ids that there are."""
    known = exercises(notebook)
    if exercise_id not in known:
        raise UsageError(f"notebook {notebook} has no exercise {exercise_id!r}; it has {', '.join(known)}")
    return known[exercise_id] if progress is None else known[exercise_id].kept_in(progress)
