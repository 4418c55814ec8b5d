"""What every notebook in the tree must be, read from its file: form, size, links, parts, and outputs to be trusted."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks.anatomy import NOT_IN_00, anatomy, required, without_answers
from workbench.lab.cells import MACHINE_PATH, UNSTABLE, NotebookCell, joined, magic, parse
from workbench.lab.write import ADDRESS, WIDGET

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 400_000
CELLS, WORDS = (30, 55), (900, 1800)
MEDIAN_LINES, MAX_LINES = 5, 25
NEED_A_REASON = {"nbval-skip", "raises-exception"}
KNOWN_TAGS = {*UNSTABLE, *NEED_A_REASON, *required(1), "claims", "nbval-check-output"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
Raw = dict[str, Any]


def findings(raw: Raw, path: Path) -> list[str]:
    """Everything that is wrong with a notebook, each in a few words; empty when nothing is."""
    found = [] if (raw["nbformat"], raw["nbformat_minor"]) == (4, 5) else ["nbformat is not 4.5"]
    kernel = raw["metadata"].get("kernelspec", {})
    if (kernel.get("name"), kernel.get("display_name")) != ("python3", "Python 3 (ipykernel)"):
        found.append(f"kernelspec {kernel}")
    if "widgets" in raw["metadata"]:
        found.append("widget state")
    notebook = parse(raw, path)
    ids = [cell.id for cell in notebook.cells]
    # Words, not the random letters a tool makes up: an id that a person chose stays the same.
    found += [f"id {name!r} is no name" for name in ids if not re.fullmatch(r"[a-z][a-z-]*[a-z]", name)]
    found += [f"id {name!r} stands twice" for name in sorted({name for name in ids if ids.count(name) > 1})]
    for cell, content in zip(notebook.cells, raw["cells"], strict=True):
        found += [f"{cell.id}: {what}" for what in _of_cell(cell, content, path.parent)]
    found += _limits(notebook.cells)
    return found + anatomy(notebook)


def _of_cell(cell: NotebookCell, content: Raw, folder: Path) -> list[str]:
    tags = set(cell.tags)
    found = [f"unknown tag {tag}" for tag in sorted(tags - KNOWN_TAGS)]
    if hit := MACHINE_PATH.search(json.dumps(content, ensure_ascii=False)):
        found.append(f"the path {hit[0]}")
    if cell.kind == "markdown":
        return found + [f"no file {link}" for link in LINK.findall(cell.source) if not _resolves(link, folder)]
    if re.search(r"^\s*[!%](?:pip|conda|apt)|\bpip install\b", cell.source, re.MULTILINE):
        found.append("installs something")
    if line := magic(cell.source):
        found.append(f"only IPython understands {line!r}")
    elif not _parses(cell.source):
        found.append("no Python")
    if len(cell.source.splitlines()) > MAX_LINES and "exercise" not in tags:
        found.append(f"{len(cell.source.splitlines())} lines")
    # Code and tasks come from the source tree; a saved copy that nobody compares grows old.
    if re.search(r"getsource\(|\.spec$", cell.source) and "nbval-check-output" not in tags:
        found.append("shows what stands in the source tree and is not tagged nbval-check-output")
    reason = cell.wishes.get("reason")
    if tags & NEED_A_REASON and not (isinstance(reason, str) and reason.strip()):
        found.append(f"{', '.join(sorted(tags & NEED_A_REASON))} without a reason in its metadata")
    # JupyterLab unfolds it when the cell is run. Of folded text it shows the first line: no answer there.
    folded = content["metadata"].get("jupyter", {}).get("outputs_hidden")
    if "lesson.predict(" in cell.source and cell.outputs and not folded:
        found.append("shows an answer before it is guessed: set jupyter.outputs_hidden in its metadata")
    return found + _of_outputs(cell, tags)


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _of_outputs(cell: NotebookCell, tags: set[str]) -> list[str]:
    found = []
    executed = cell.execution_count is not None
    if cell.outputs and not executed:
        found.append("outputs but no execution count")
    if "nbval-check-output" in tags and not (executed and cell.outputs):
        found.append("nbval-check-output without an output to check")
    if tags & UNSTABLE and (cell.outputs or "nbval-check-output" in tags):
        found.append("an output of one machine or moment")
    if any(output["output_type"] == "error" or output.get("name") == "stderr" for output in cell.outputs):
        found.append("an error or a message on stderr")
    for output in cell.outputs:
        data = output.get("data", {})
        if WIDGET in data:
            found.append("a widget, which is dead without its kernel")
        texts = [output.get("text", ""), *(text for kind, text in data.items() if kind.startswith("text/"))]
        if any(hit := ADDRESS.search(joined(text)) for text in texts):
            found.append(f"an output with the address {hit[0]}")
    return found


def _resolves(link: str, folder: Path) -> bool:
    return link.startswith(("https://", "#", "attachment:")) or (folder / link.split("#")[0]).exists()


def _limits(cells: tuple[NotebookCell, ...]) -> list[str]:
    lines = sorted(len(cell.source.splitlines()) for cell in cells if cell.kind == "code")
    prose = [cell.source for cell in cells if cell.kind == "markdown"]
    words = sum(1 for text in prose for word in without_answers(text).split() if re.search(r"\w", word))
    counts = [("cells", len(cells), CELLS), ("words", words, WORDS)]
    found = [f"{count} {what}, not {low} to {high}" for what, count, (low, high) in counts if not low <= count <= high]
    if not lines or lines[len(lines) // 2] > MEDIAN_LINES:
        found.append(f"the median code cell is over {MEDIAN_LINES} lines")
    return found


def test_there_are_notebooks():
    assert [path.stem for path in FILES][:1] == ["00_start_here"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook(path: Path):
    text = path.read_text(encoding="utf-8")
    nbformat.validate(nbformat.reads(text, as_version=nbformat.NO_CONVERT))
    assert findings(json.loads(text), path) == []
    assert path.stat().st_size < MAX_BYTES
    assert text.endswith("}\n")


def _first(raw: Raw, kind: str, tag: str = "") -> Raw:
    return next(c for c in raw["cells"] if c["cell_type"] == kind and (not tag or tag in c["metadata"].get("tags", [])))


def _set(where: Callable[[Raw], Raw], name: str, value: object) -> Callable[[Raw], None]:
    return lambda raw: where(raw).__setitem__(name, value)


def _tag(where: Callable[[Raw], Raw], *tags: str, **wishes: object) -> Callable[[Raw], None]:
    return _set(where, "metadata", {"tags": list(tags), "workbench": wishes})


def _code(raw: Raw) -> Raw:
    return _first(raw, "code")


def _checked(raw: Raw) -> Raw:
    return _first(raw, "code", "nbval-check-output")


def _guessed(raw: Raw) -> Raw:
    return next(c for c in raw["cells"] if c.get("outputs") and "lesson.predict(" in joined(c["source"]))


def _show(**output: object) -> Callable[[Raw], None]:
    return lambda raw: _checked(raw)["outputs"].append(output)


def _data(kind: str, content: str) -> Raw:
    return {"output_type": "display_data", "metadata": {}, "data": {kind: content}}


STREAM = {"output_type": "stream", "name": "stdout", "text": "1.2 ms"}


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda nb: nb.__setitem__("nbformat_minor", 4), "nbformat"),
        (lambda nb: nb["metadata"].__setitem__("widgets", {}), "widget state"),
        (lambda nb: nb["metadata"]["kernelspec"].__setitem__("name", ".venv"), "kernelspec"),
        (_set(_code, "id", "3f2a91bc"), "is no name"),
        (_set(_code, "id", "promise"), "stands twice"),
        (_set(_code, "source", "!pip install x"), "installs"),
        (_set(_code, "source", "x = 1\n%time x"), "only IPython understands '%time x'"),
        (_set(_code, "source", "x = (1\n"), "no Python"),
        (_set(_code, "source", "open('/" + "tmp/x')"), "the path"),
        (_set(_code, "source", "x = 1\n" * 26), "26 lines"),
        (_set(_code, "source", "import inspect\nprint(inspect.getsource(print))"), "what stands in the source tree"),
        (_set(_code, "source", 'one = lesson.exercise("x")\none.spec'), "what stands in the source tree"),
        (_tag(_code, "measured"), "unknown tag measured"),
        (_tag(_code, "nbval-skip"), "nbval-skip without a reason"),
        (_tag(_code, "raises-exception", reason=" "), "raises-exception without a reason"),
        (lambda nb: _guessed(nb)["metadata"].pop("jupyter"), "shows an answer before it is guessed"),
        (_set(_checked, "outputs", []), "without an output to check"),
        (_set(_checked, "execution_count", None), "without an output to check"),
        (_show(output_type="stream", name="stderr", text="a warning"), "a message on stderr"),
        (_show(**_data("text/plain", "<T at 0x7f3a" + "00d1>")), "the address 0x7f3a00d1"),
        (_show(**_data(WIDGET, "")), "a widget"),
        (lambda nb: _first(nb, "code", "timing")["outputs"].append(STREAM), "one machine or moment"),
        (lambda nb: _first(nb, "markdown").__setitem__("source", "![x](pictures/none.svg)"), "no file"),
        (lambda nb: _first(nb, "markdown").__setitem__("source", "word " * 1900), "words"),
        (lambda nb: nb["cells"].extend(copy.deepcopy(nb["cells"][:2])), "cells"),
    ],
)
def test_each_fault_is_found(spoil, expected):
    path = FOLDER / "00_start_here.ipynb"
    raw = json.loads(path.read_text(encoding="utf-8"))
    spoil(raw)
    assert any(expected in what for what in findings(raw, path))


LESSON = {
    "promise": "# One promise",
    "start": 'from workbench.lab import start\n\nlesson = start("07")',
    "limit": "The limit.",
    "budget": "bytes_moved = 2 * 3",
    "guess": "**Predict:** how long?",
    "predict": 'lesson.predict("speedup", 2.0)',
    "walk": "step = 1",
    "measure": "assert fast.seconds < slow.seconds",
    "explore": "show(widget, static)",
    "exercise": 'lesson.exercise("x")',
    "loses": "lost = 1",
    "break-it": 'with lesson.must_trip(AssertionError, "counts"):\n    pool.check()',
    "recall": "1. Why?\n2. How?\n\n<details><summary>Answers</summary>\n\n1. So.\n2. Thus.\n\n</details>",
    "claims": 'lesson.claims({"B1": ("confirmed here", "measure")})',
    "scoreboard": 'lesson.scoreboard(**{"TTFT ms": 1})',
}
PROSE = {"promise", "limit", "guess", "recall"}


def lesson(**changes: str | None) -> list[str]:
    """What `anatomy` finds in a small lesson; ``changes`` give a cell another source (None: leave the cell out).

    Python's names have no dash: ``break_it`` is the cell ``break-it``.
    """
    cells = LESSON | {name.replace("_", "-"): source for name, source in changes.items()}
    raw: Raw = {"nbformat": 4, "metadata": {}, "cells": []}
    for name, source in cells.items():
        tags = [{"guess": "predict"}.get(name, name)] if name != "start" else []
        kind = "markdown" if name in PROSE else "code"
        if source is not None:
            raw["cells"].append({"id": name, "cell_type": kind, "source": source, "metadata": {"tags": tags}})
    return anatomy(parse(raw, Path("07_flash_attention.ipynb")))


def test_a_lesson_with_all_its_parts_is_in_order():
    assert lesson() == []
    assert lesson(claims=None) == [], "a notebook may have no claims"


@pytest.mark.parametrize("tag", required(1))
def test_each_missing_part_is_found(tag):
    # A guess in words alone is no prediction.
    extra = {"guess": None} if tag == "predict" else {}
    assert any(f"cell is tagged {tag}" in what for what in lesson(**{tag.replace("-", "_"): None}, **extra))


@pytest.mark.parametrize(
    ("cell", "source", "expected"),
    [
        ("start", None, 'not: lesson = start("07")'),
        ("start", 'lesson = start("08")', 'not: lesson = start("07")'),
        ("start", 'lesson = start("07")\nx = 1', 'not: lesson = start("07")'),
        ("predict", 'speedup = 2.0', "guess: tagged predict and not followed"),
        ("predict", None, "guess: tagged predict and not followed"),
        ("measure", "fast.seconds < slow.seconds", "asserts nothing"),
        ("break_it", "try:\n    pool.check()\nexcept AssertionError:\n    pass", "without: with lesson.must_trip"),
        ("break_it", "with lesson.must_trip(AssertionError):\n    pool.check()", "without: with lesson.must_trip"),
        ("walk", 'with lesson.must_trip(AssertionError, "x"):\n    f()', "is not tagged break-it"),
        ("walk", "lesson.claims({})", "is not tagged claims"),
        ("claims", "'claims'", "does not call lesson.claims"),
        ("scoreboard", "print(1)", "does not call lesson.scoreboard"),
        ("recall", "1. Why?", "the questions are 1 and the answers folded below them "),
        ("recall", "Why?", "recall: tagged recall and asks nothing"),
    ],
)  # fmt: skip
def test_each_part_that_does_not_do_what_it_says_is_found(cell, source, expected):
    assert any(expected in what for what in lesson(**{cell: source}))


@pytest.mark.parametrize(
    "line",
    [
        "assert trace.duration < 0.5",
        "assert 1e-3 > timing.median",
        "assert phases['seconds'] < 2 * 10**-3 and True",
        "assert all(t < 5 for t in [one.seconds]) or step_ms < 7",
        "assert 0 < sum(trace.duration for trace in traces) < 3",
        "assert tokens_per_second > 100",
        "assert not (-1 > elapsed - 4)",
        "if x:\n    assert median(trace.duration for trace in traces) <= 0.2, 'slow'",
    ],
)
def test_an_assert_on_an_absolute_time_is_found(line):
    assert any("a time with a literal" in what for what in lesson(measure=line))


@pytest.mark.parametrize(
    "line",
    [
        "assert prefill_seconds < decode_seconds",
        "assert decode.seconds / prefill.seconds > 1.5",
        "assert 3 * fast_ms < slow_ms",
        "assert trace.duration > 0",
        "assert len(timings) == 7",
        "assert comparison.ratio('a', 'b') > 1.2",
        "assert len(traces) < 25",
        "assert num_steps == 5",
    ],
)
def test_an_assert_on_an_order_a_ratio_or_a_count_is_in_order(line):
    assert lesson(measure=line) == []


def test_answers_are_no_reading():
    assert without_answers("1. a b\n\n" + LESSON["recall"].split("\n\n", 1)[1]).split() == ["1.", "a", "b"]


def test_what_00_does_without_is_part_of_every_other_notebook():
    assert set(NOT_IN_00) < set(required(1)) and set(required(0)) == set(required(1)) - set(NOT_IN_00)
