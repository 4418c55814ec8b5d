"""`make notebooks`: which outputs of a run stay in a notebook's file, and that a second run changes nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.notebooks.made_up import made_up
from workbench.errors import WorkbenchError
from workbench.lab import write

SOURCES = {
    "text": "import sys\n\nprint('one', flush=True)\nprint('noise', file=sys.stderr, flush=True)\nprint('two')",
    "table": "from workbench.lab import Table\n\nTable(['a'], [['한글']])",
    "figure": "import matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nplt.show()",
    "widget": "import ipywidgets\n\nipywidgets.IntSlider()",
    "moment": "import time\n\ntime.time()",
    "machine": "import os\n\nos.getpid()",
    "gpu": "raise RuntimeError",
    "size": "import os\n\n[os.environ.get(f'WORKBENCH_{name}') for name in ('TIER', 'DEVICE', 'GRADE')]",
}
TAGS = {"moment": ["timing"], "machine": ["machine"]}
CUDA = {"gpu": {"device": "cuda"}}


def shown(path: Path) -> dict[str, list]:
    return {cell.id: cell.outputs for cell in nbformat.read(path, as_version=4).cells}


@pytest.mark.slow
def test_outputs_that_read_well_stay_and_a_second_run_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_GRADE", "strict")
    path = made_up(tmp_path, SOURCES, TAGS, {"minutes": 1}, CUDA).path
    ids = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    path.chmod(0o644)
    assert write.main([str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o644
    first = path.read_bytes()
    outputs = shown(path)
    assert list(outputs) == ids
    assert [(output.output_type, output.text) for output in outputs["text"]] == [("stream", "one\ntwo\n")]
    assert (
        set(outputs["table"][0].data) == {"text/html", "text/plain"} and "한글" in outputs["table"][0].data["text/html"]
    )
    assert outputs["figure"][0].data["image/png"]
    assert [outputs[name] for name in ("widget", "moment", "machine", "gpu")] == [[]] * 4
    assert outputs["size"][0].data["text/plain"] == "['cpu', 'cpu', None]"
    content = json.loads(first)
    assert [cell["execution_count"] for cell in content["cells"]] == [1, 2, 3, 4, None, None, None, 8]
    assert content["metadata"]["workbench"] == {"minutes": 1} and "widgets" not in content["metadata"]
    assert [cell["metadata"].get("ran") for cell in content["cells"]] == [None] * 8
    assert first.decode() == json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert write.main([str(path)]) == 0
    assert path.read_bytes() == first
    assert write.main([str(path), "--check"]) == 0


@pytest.mark.slow
def test_check_names_the_cell_that_changes_from_run_to_run_and_writes_nothing(tmp_path, capsys):
    sources = {"same": "1 + 1", "pid": "import os\n\nprint('always')\nprint(os.getpid())"}
    path = made_up(tmp_path, sources).path
    assert write.main([str(path)]) == 0
    before = path.read_bytes()
    assert write.main([str(path), "--check"]) == 1
    err = capsys.readouterr().err
    assert "99_made_up: pid: the file has" in err and "same" not in err
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nassert x == 2, 'two of them'", "cell bad: AssertionError: two of them"),
        ("import os\n\nos.getcwd()", "bad: shows the path"),
        ("object()", "bad: shows the address 0x"),
        ("import os, sys\n\nprint('why', file=sys.__stderr__, flush=True)\nos._exit(3)", "the kernel died; it said:"),
    ],
)
def test_a_notebook_that_cannot_be_kept_is_left_as_it_was(tmp_path, capsys, source, message):
    path = made_up(tmp_path, {"good": "1 + 1", "bad": source}).path
    before = path.read_bytes()
    assert write.main([str(path)]) == 1
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def stream(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return new_output("stream", name=name, text=text)


def data(kind: str = "display_data", **parts: str) -> nbformat.NotebookNode:
    return new_output(kind, {name.replace("_", "/"): part for name, part in parts.items()})


def test_kept_joins_text_that_chance_has_cut_and_only_that():
    table = data(text_plain="a", text_html="<b>a</b>")
    outputs = [stream("one"), stream("warn", "stderr"), stream(" more\n"), table, stream("two\n")]
    assert write.kept(outputs, 3) == [stream("one more\n"), table, stream("two\n")]
    assert outputs[0].text == "one", "what was given is not changed"


def test_kept_drops_what_is_dead_without_a_kernel():
    widget = new_output("display_data", {write.WIDGET: {"model_id": "ab"}, "text/plain": "IntSlider(value=0)"})
    unseen = new_output("display_data", {"application/x-state": "s"})
    error = new_output("error", ename="E", evalue="e", traceback=["t"])
    mixed = new_output("display_data", {"application/x-state": "s", "text/plain": "a"})
    assert write.kept([widget, unseen, error, mixed], 1) == [data(text_plain="a")]


def test_kept_numbers_the_result_by_the_cells_place():
    result = data("execute_result", text_plain="2")
    result.execution_count = 17
    assert write.kept([result], 3)[0].execution_count == 3


def png(size: int) -> str:
    return base64.b64encode(b"\x89" * size).decode()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (stream("see /" + "home/somebody/x"), "shows the path"),
        (data(text_html="<T object at 0x7f3a" + "00d1>"), "shows the address"),
        (data(image_png=png(write.MAX_PNG_BYTES + 1)), "a figure of 80,001 bytes"),
        (data(image_png=png(write.MAX_PNG_BYTES)), ""),
        (stream("0x1f is 31; https://a.b/home/x"), ""),
    ],
)
def test_faults_of_outputs_are_found(output, expected):
    found = write.faults(new_notebook(cells=[new_code_cell("x", id="cell", outputs=[output])]))
    assert ([expected in what and what.startswith("cell: ") for what in found] == [True]) if expected else found == []


def test_differences_name_the_first_line_that_differs():
    def notebook(*outputs: nbformat.NotebookNode) -> nbformat.NotebookNode:
        return new_notebook(cells=[new_code_cell("x", id="cell", outputs=list(outputs), execution_count=1)])

    same = notebook(stream("a\nb\n"))
    assert write.differences(same, notebook(stream("a\nb\n"))) == []
    (told,) = write.differences(same, notebook(stream("a\nc\n")))
    assert told.startswith("cell: the file has 'b'") and "this run 'c'" in told
    (told,) = write.differences(same, notebook())
    assert told.startswith("cell: ") and "(nothing)" in told


def test_unknown_notebooks_are_refused_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setattr(write, "write", lambda *_: pytest.fail("it ran"))
    assert write.main(["00", "99"]) == 2
    assert "notebook '99' is not known" in capsys.readouterr().err


def test_a_damaged_notebook_is_told_by_name(tmp_path, capsys):
    path = tmp_path / "99_damaged.ipynb"
    path.write_text('{"cells": 3}', encoding="utf-8")
    assert write.main([str(path)]) == 1
    assert "99_damaged" in capsys.readouterr().err
    with pytest.raises(WorkbenchError):
        write.write(path)
