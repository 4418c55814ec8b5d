"""What a reader has done: predictions, measurements, scoreboard rows and exercises, in one JSON file.

The file is ``progress.json`` in WORKBENCH_HOME, or where ``WORKBENCH_PROGRESS`` says. Several kernels may have it open:
each change takes a lock, reads the file anew, changes one entry and replaces the file as a whole. A file that cannot be
read is set aside, never overwritten. Without a path everything is kept in memory only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from workbench.files import write_atomically
from workbench.model.store import home

SCHEMA_VERSION = 1
KINDS = ("predictions", "measurements", "scoreboard", "exercises")
"""What is kept of a notebook; each an object of entries by name."""

Entries = dict[str, Any]


class Progress:
    """Entries by notebook, kind and name. ``say`` is told in one line when something about the file is wrong."""

    def __init__(self, path: Path | None, say: Callable[[str], None] = print) -> None:
        self.path = path
        self._say = say
        self._kept = _empty()
        with self._locked():
            self._load()

    def entries(self, notebook: str, kind: str) -> Entries:
        """A copy of the entries of one kind, in the order in which they were first made."""
        with self._locked():
            self._load()
        return dict(self._kept["notebooks"].get(notebook, {}).get(_known(kind), {}))

    def notebooks(self, kind: str) -> dict[str, Entries]:
        """The entries of one kind of all notebooks that have any, by notebook number in order."""
        numbers = sorted(self._kept["notebooks"])
        return {number: found for number in numbers if (found := self.entries(number, kind))}

    def put(self, notebook: str, kind: str, name: str, entry: Any) -> None:
        """Keeps one entry (anything JSON holds) in place of an older one of that name."""
        _known(kind)
        with self._locked():
            self._load()
            self._kept["notebooks"].setdefault(notebook, {}).setdefault(kind, {})[name] = entry
            self._save()

    def record_exercise(self, notebook: str, exercise: str, state: str) -> None:
        """``state`` in words: not attempted, fails, passes, skipped."""
        self.put(notebook, "exercises", exercise, {"state": state})

    def _load(self) -> None:
        """What the file holds; a file that cannot be used is moved out of the way, and what is in memory stays."""
        if self.path is None:
            return
        try:
            self._kept = _checked(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except OSError as error:
            self._memory_only(error)
        except ValueError as error:
            aside = _free_name(self.path)
            try:
                os.replace(self.path, aside)
            except OSError as failed:
                self._memory_only(failed)
            else:
                self._say(f"{self.path.name} cannot be used ({error}); it is set aside as {aside.name}")

    def _save(self) -> None:
        if self.path is None:
            return
        try:
            write_atomically(self.path, json.dumps(self._kept, ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            self._memory_only(error)

    def _memory_only(self, error: OSError) -> None:
        self._say(f"progress is kept for this session only: {error}")
        self.path = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else who takes this lock changes the file meanwhile. The operating system drops it with its holder."""
        lock = self._lock_file()
        if lock is None:
            yield
            return
        import fcntl

        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock_file(self) -> IO[str] | None:
        if self.path is None:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.with_name(f".{self.path.name}.lock").open("w")
        except OSError as error:
            self._memory_only(error)
            return None


def open_progress(tier: str, keep: bool = True) -> Progress:
    """The reader's progress. A test's (tier ``tiny``), or one not to ``keep``, writes no file unless told where."""
    told = os.environ.get("WORKBENCH_PROGRESS")
    if told:
        return Progress(Path(told).expanduser())
    return Progress(home() / "progress.json" if keep and tier != "tiny" else None)


def _empty() -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "notebooks": {}}


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of progress: {', '.join(KINDS)}")
    return kind


def _checked(kept: Any) -> dict[str, Any]:
    """``kept`` if it has the shape that this file writes; raises ValueError in a few words otherwise."""
    if not isinstance(kept, dict) or not isinstance(kept.get("notebooks"), dict):
        raise ValueError("it does not hold notebooks")
    if kept.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema version {kept.get('schema_version')!r}, not {SCHEMA_VERSION}")
    for number, kinds in kept["notebooks"].items():
        if not isinstance(kinds, dict) or not all(isinstance(kinds.get(kind, {}), dict) for kind in KINDS):
            raise ValueError(f"notebook {number!r} is damaged")
    return kept


def _free_name(path: Path) -> Path:
    """``progress.json.bad``, or with a number where that is taken."""
    plain = path.with_name(f"{path.name}.bad")
    numbered = (path.with_name(f"{path.name}.bad{number}") for number in range(2, 1000))
    return next((name for name in (plain, *numbered) if not name.exists()), plain)
