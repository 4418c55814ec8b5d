"""The course and its words as data: the list of notebooks and the glossary, English with the Korean term beside it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from workbench.lab.table import Cell, Table


class Notebook(NamedTuple):
    name: str
    """File name without its ending, ``00_start_here``."""
    idea: str
    triton: bool = False
    """Whether it runs Triton kernels, which without a GPU can be interpreted but not timed."""

    @property
    def number(self) -> str:
        """``00``."""
        return self.name[:2]


class Term(NamedTuple):
    term: str
    korean: str
    meaning: str
    notebook: str
    """Number of the notebook that explains it."""


def notebooks() -> list[Notebook]:
    """All notebooks of the course in order, written or not."""
    return [Notebook(**entry) for entry in _data("course.json")]


def terms() -> list[Term]:
    """All terms of the glossary, those that belong together beside each other."""
    return [Term(**entry) for entry in _data("glossary.json")]


def course_map(folder: str | Path = ".") -> Table:
    """The notebooks in order and whether ``folder`` holds each one."""
    rows: list[list[Cell | str | int]] = []
    for notebook in notebooks():
        here = (Path(folder) / f"{notebook.name}.ipynb").is_file()
        rows.append([notebook.name, notebook.idea, Cell("here", "decode") if here else Cell("planned", "quiet")])
    return Table(["notebook", "its one idea", "today"], rows)


def glossary() -> Table:
    """Every term with its Korean counterpart, one sentence, and the notebook that explains it."""
    return Table(["term", "한국어", "meaning", "notebook"], [list(term) for term in terms()])


def _data(name: str) -> list[dict[str, Any]]:
    text = resources.files("workbench.lab").joinpath("data", name).read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries
