"""What every notebook in the tree must be, read from its file: format, size, links, and outputs that can be trusted."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 400_000
CELLS, WORDS = (30, 55), (900, 1800)
MEDIAN_LINES, MAX_LINES = 5, 25
UNSTABLE = {"machine", "timing"}
"""Tags of cells whose output belongs to one machine or one moment, so it is never committed."""
KNOWN_TAGS = UNSTABLE | {
    "promise", "limit", "budget", "predict", "walk", "measure", "explore", "exercise", "loses", "break-it", "recall",
    "claims", "scoreboard", "nbval-check-output", "raises-exception",
}  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w.:/}])/(?:home|root|tmp|opt|work|mnt|usr|var|Users)/|\b[A-Z]:\\\\")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def findings(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """Everything that is wrong with a notebook, each in a few words; empty when nothing is."""
    found = [] if (notebook.nbformat, notebook.nbformat_minor) == (4, 5) else ["nbformat is not 4.5"]
    kernel = notebook.metadata.get("kernelspec", {})
    if (kernel.get("name"), kernel.get("display_name")) != ("python3", "Python 3 (ipykernel)"):
        found.append(f"kernelspec {kernel}")
    if "widgets" in notebook.metadata:
        found.append("widget state")
    ids = [cell.get("id", "") for cell in notebook.cells]
    # Words, not the random letters a tool makes up: an id that a person chose stays the same.
    found += [f"id {name!r} is no name" for name in ids if not re.fullmatch(r"[a-z][a-z-]*[a-z]", name)]
    found += [f"id {name!r} stands twice" for name in sorted({name for name in ids if ids.count(name) > 1})]
    for cell in notebook.cells:
        found += [f"{cell.id}: {what}" for what in _of_cell(cell, folder)]
    return found + _limits(notebook)


def _of_cell(cell: nbformat.NotebookNode, folder: Path) -> list[str]:
    tags = set(cell.metadata.get("tags", []))
    found = [f"unknown tag {tag}" for tag in sorted(tags - KNOWN_TAGS)]
    everything = nbformat.v4.writes(nbformat.v4.new_notebook(cells=[cell]))
    if hit := MACHINE_PATH.search(everything):
        found.append(f"the path {hit[0]}")
    if cell.cell_type == "markdown":
        return found + [f"no file {link}" for link in LINK.findall(cell.source) if not _resolves(link, folder)]
    if re.search(r"^\s*[!%](?:pip|conda|apt)|\bpip install\b", cell.source, re.MULTILINE):
        found.append("installs something")
    if len(cell.source.splitlines()) > MAX_LINES and "exercise" not in tags:
        found.append(f"{len(cell.source.splitlines())} lines")
    executed = cell.execution_count is not None
    if cell.outputs and not executed:
        found.append("outputs but no execution count")
    if "nbval-check-output" in tags and not (executed and cell.outputs):
        found.append("nbval-check-output without an output to check")
    if tags & UNSTABLE and (cell.outputs or "nbval-check-output" in tags):
        found.append("an output of one machine or moment")
    if any(output.output_type == "error" or output.get("name") == "stderr" for output in cell.outputs):
        found.append("an error or a message on stderr")
    return found


def _resolves(link: str, folder: Path) -> bool:
    return link.startswith(("https://", "#", "attachment:")) or (folder / link.split("#")[0]).exists()


def _limits(notebook: nbformat.NotebookNode) -> list[str]:
    lines = sorted(len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code")
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    words = sum(1 for text in prose for word in text.split() if re.search(r"\w", word))
    counts = [("cells", len(notebook.cells), CELLS), ("words", words, WORDS)]
    found = [f"{count} {what}, not {low} to {high}" for what, count, (low, high) in counts if not low <= count <= high]
    if not lines or lines[len(lines) // 2] > MEDIAN_LINES:
        found.append(f"the median code cell is over {MEDIAN_LINES} lines")
    return found


def test_there_are_notebooks():
    assert [path.stem for path in FILES][:1] == ["00_start_here"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook(path: Path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert findings(notebook, FOLDER) == []
    assert path.stat().st_size < MAX_BYTES
    assert path.read_text(encoding="utf-8").endswith("}\n")


def _first(notebook: nbformat.NotebookNode, kind: str, tag: str = "") -> nbformat.NotebookNode:
    return next(c for c in notebook.cells if c.cell_type == kind and (not tag or tag in c.metadata.get("tags", [])))


def _set(where: Callable[[nbformat.NotebookNode], nbformat.NotebookNode], name: str, value: object):
    return lambda notebook: where(notebook).__setitem__(name, value)


def _code(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return _first(notebook, "code")


def _checked(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return _first(notebook, "code", "nbval-check-output")


STREAM = nbformat.from_dict({"output_type": "stream", "name": "stdout", "text": "1.2 ms"})


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda nb: nb.__setitem__("nbformat_minor", 4), "nbformat"),
        (lambda nb: nb.metadata.__setitem__("widgets", {}), "widget state"),
        (lambda nb: nb.metadata.kernelspec.__setitem__("name", ".venv"), "kernelspec"),
        (_set(_code, "id", "3f2a91bc"), "is no name"),
        (_set(_code, "id", "promise"), "stands twice"),
        (_set(_code, "source", "!pip install x"), "installs"),
        (_set(_code, "source", "open('/" + "tmp/x')"), "the path"),
        (_set(_code, "source", "x = 1\n" * 26), "26 lines"),
        (_set(_checked, "outputs", []), "without an output to check"),
        (_set(_checked, "execution_count", None), "without an output to check"),
        (lambda nb: _first(nb, "code", "timing").outputs.append(STREAM), "one machine or moment"),
        (lambda nb: _first(nb, "markdown").__setitem__("source", "![x](pictures/none.svg)"), "no file"),
        (lambda nb: _first(nb, "markdown").__setitem__("source", "word " * 1900), "words"),
        (lambda nb: nb.cells.extend(copy.deepcopy(nb.cells[:2])), "cells"),
    ],
)
def test_each_fault_is_found(spoil, expected):
    notebook = nbformat.read(FOLDER / "00_start_here.ipynb", as_version=nbformat.NO_CONVERT)
    spoil(notebook)
    assert any(expected in what for what in findings(notebook, FOLDER))
