"""A notebook's file as data: its cells, their tags, and what it wishes of those who run it.

Plain JSON and nothing of Jupyter, so that a notebook is read where only Python and torch are. Wishes stand in the
metadata under ``workbench``. A notebook's: ``{"turn_off": {option: value}, "minutes": 30, "cell_timeout_s": 60,
"device": "cuda"}``; a cell's: ``{"device": "cuda", "reason": "why it is skipped or raises"}``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench
from workbench.errors import UsageError, WorkbenchError
from workbench.lab import course

UNSTABLE = frozenset({"machine", "timing"})
"""Tags of cells whose output belongs to one machine or one moment, so it is never committed."""
MACHINE_PATH = re.compile(r"(?<![\w.:/}])/(?:home|root|tmp|opt|work|mnt|usr|var|Users)/|\b[A-Z]:\\\\")
"""A path of somebody's machine, in a notebook's JSON. URLs and paths relative to the notebook are none."""


@dataclass(frozen=True, slots=True)
class NotebookCell:
    id: str
    kind: str
    """``code``, ``markdown`` or ``raw``."""
    source: str
    tags: tuple[str, ...]
    wishes: Mapping[str, Any]
    execution_count: int | None
    outputs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class NotebookFile:
    path: Path
    metadata: Mapping[str, Any]
    cells: tuple[NotebookCell, ...]

    @property
    def name(self) -> str:
        """File name without its ending, ``00_start_here``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """The digits that its name begins with, ``00``; empty where there are none."""
        return self.name.split("_")[0] if self.name[:1].isdigit() else ""

    @property
    def wishes(self) -> Mapping[str, Any]:
        return dict(self.metadata.get("workbench", {}))

    @property
    def turn_off(self) -> Mapping[str, Any]:
        """Engine options that turn off what the notebook is about; empty where it names none."""
        return dict(self.wishes.get("turn_off", {}))

    @property
    def code(self) -> tuple[NotebookCell, ...]:
        return tuple(cell for cell in self.cells if cell.kind == "code")


def folder() -> Path:
    """Where the course's notebooks lie."""
    return Path(workbench.__file__).resolve().parents[1] / "notebooks"


def find(name: str, where: Path | None = None) -> Path:
    """The file of a notebook, by its number (``7``, ``07``), its name or its path; ``where`` defaults to `folder`.

    Raises UsageError that lists the notebooks that are there.
    """
    if name.endswith(".ipynb"):
        if Path(name).is_file():
            return Path(name).resolve()
        raise UsageError(f"notebook {name!r}: no such file here")
    where = where or folder()
    here = sorted(where.glob("*.ipynb"))
    number = name.zfill(2) if name.isdigit() else name
    for path in here:
        if number in (path.stem, path.stem.split("_")[0]):
            return path
    planned = [entry.name for entry in course.notebooks() if number in (entry.name, entry.name.split("_")[0])]
    what = f"is planned ({planned[0]}) and not written yet" if planned else "is not known"
    raise UsageError(f"notebook {name!r} {what}; here are {', '.join(path.stem for path in here) or 'none'}")


def read(path: Path) -> NotebookFile:
    """A notebook from its file. Raises WorkbenchError that names the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path}: cannot be read as a notebook: {error}") from error
    return parse(content, path)


def parse(content: Any, path: Path) -> NotebookFile:
    """A notebook from the content of its file; format 4 with cell ids, as `read` says."""
    try:
        if content["nbformat"] != 4:
            raise TypeError(f"nbformat {content['nbformat']}")
        cells = tuple(_cell(cell) for cell in content["cells"])
        return NotebookFile(path, content.get("metadata", {}), cells)
    except (KeyError, TypeError, AttributeError) as error:
        raise WorkbenchError(f"{path}: not a notebook of format 4.5 ({type(error).__name__}: {error})") from error


def _cell(cell: Mapping[str, Any]) -> NotebookCell:
    metadata = cell["metadata"]
    return NotebookCell(
        id=cell["id"],
        kind=cell["cell_type"],
        source=joined(cell["source"]),
        tags=tuple(metadata.get("tags", ())),
        wishes=metadata.get("workbench", {}),
        execution_count=cell.get("execution_count"),
        outputs=tuple(cell.get("outputs", ())),
    )


def joined(text: str | list[str]) -> str:
    """A text of a notebook's JSON, which may stand there in lines."""
    return text if isinstance(text, str) else "".join(text)


def uses_cuda(device: str) -> bool:
    """Whether a run with this option ``device`` (auto, cpu or cuda) computes on a CUDA device."""
    if device != "auto":
        return device == "cuda"
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def why_skipped(notebook: Mapping[str, Any], cell: Mapping[str, Any], cuda: bool) -> str | None:
    """Why a cell is not run, from its notebook's wishes and its own; None when it is. ``cuda``: is there a device."""
    if cuda or "cuda" not in (notebook.get("device"), cell.get("device")):
        return None
    what = "this notebook" if notebook.get("device") == "cuda" else "this cell"
    return f"{what} needs a CUDA device and there is none in this run"


def magic(source: str) -> str | None:
    """The line of a cell that only IPython understands (``%time``, ``!ls``, ``name?``), or None."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        lines = source.splitlines()
        line = lines[error.lineno - 1].strip() if error.lineno and error.lineno <= len(lines) else ""
        return line if re.match(r"[%!?]|[\w, ]+=\s*[%!]", line) or line.endswith("?") else None
    return None
