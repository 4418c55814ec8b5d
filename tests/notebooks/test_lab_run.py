"""`workbench.lab.run`: a notebook's code cells without Jupyter, and what is told when one fails."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.notebooks.bare import bare, reported
from tests.notebooks.made_up import made_up
from workbench.errors import UsageError, WorkbenchError
from workbench.lab import cells
from workbench.lab.run import main, run

ALL = [cells.read(path) for path in sorted(cells.folder().glob("*.ipynb"))]


def test_it_runs_where_jupyter_and_widgets_cannot_be_imported(tmp_path: Path):
    sources = {
        "text": "from workbench.lab import Table\n\nTable(['a'], [[1]])",
        "name": "display('shown')",
        "really": "try:\n    import IPython\nexcept ImportError:\n    print('none here')",
    }
    done = bare(str(made_up(tmp_path, sources).path), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "a\n-\n1\n" in done.stdout and "'shown'" in done.stdout and "none here" in done.stdout


# The others run like this in test_activation.py.
@pytest.mark.slow
@pytest.mark.parametrize("notebook", [nb for nb in ALL if not nb.turn_off], ids=lambda notebook: notebook.name)
def test_every_notebook_runs_where_jupyter_and_widgets_cannot_be_imported(notebook: cells.NotebookFile, tmp_path: Path):
    told = reported(notebook.path, tmp_path)
    assert told["ok"], told["cells"][-1]
    assert [cell["id"] for cell in told["cells"]] == [cell.id for cell in notebook.code]
    assert (told["device"], told["tier"], told["provenance"]["device"]) == ("cpu", "tiny", "cpu")


def test_the_last_value_of_a_cell_is_printed_as_jupyter_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sources = {
        "text": "x = 'Hangul 한글'\nx",
        "quiet": "x;  # no value",
        "nothing": "None",
        "before": "3\ny = 4",
        "hash": "'a;'  # not the end;",
        "last": "_ + 'b'",
    }
    assert run(made_up(tmp_path, sources), "cpu").ok
    out = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("──", "   "))]
    assert out == ["'Hangul 한글'", "'a;'", "'a;b'"]


def test_cells_share_a_main_module_in_the_notebooks_folder(tmp_path: Path):
    (tmp_path / "beside.txt").write_text("beside", encoding="utf-8")
    sources = {
        "define": "import inspect, pickle\n\n\nclass Thing:\n    size = 2\n\n\ndef f(x):\n    return x + 1  # one more",
        "use": "assert pickle.loads(pickle.dumps(Thing())).size == 2 and __name__ == '__main__'",
        "source": "assert '# one more' in inspect.getsource(f)",
        "where": "assert open('beside.txt').read() == 'beside'",
        "own": "def g(x: int):\n    pass\n\n\nassert g.__annotations__ == {'x': int}",  # the runner's are texts
    }
    here, mine = Path.cwd(), sys.modules["__main__"]
    assert run(made_up(tmp_path, sources), "cpu").ok
    assert (Path.cwd(), sys.modules["__main__"]) == (here, mine)


def test_the_environment_is_set_for_the_run_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKBENCH_TURN_OFF", '{"left": "over"}')
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)
    expected = {"WORKBENCH_DEVICE": "cpu", "WORKBENCH_TIER": "tiny", "WORKBENCH_STATIC": "1",
                "WORKBENCH_GRADE": "reference", "WORKBENCH_TURN_OFF": None, "MPLBACKEND": "Agg"}  # fmt: skip
    source = f"import os\n\nexpected = {expected}\nassert {{n: os.environ.get(n) for n in expected}} == expected"
    before = dict(os.environ)
    assert run(made_up(tmp_path, {"environment": source}), "cpu", "tiny").ok
    assert dict(os.environ) == before


def test_the_device_and_the_model_reach_an_engine_made_without_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORKBENCH_MODEL", "another")
    source = (
        "from workbench import EngineConfig\n\nc = EngineConfig()\nassert (c.device, c.model) == ('cuda', 'another'), c"
    )
    assert run(made_up(tmp_path, {"config": source}), "cuda").ok


def test_turning_off_hands_over_the_options_and_spares_the_readers_progress(tmp_path: Path):
    source = (
        "import json, os\n\n"
        "assert json.loads(os.environ['WORKBENCH_TURN_OFF']) == {'max_num_seqs': 1}\n"
        "assert 'progress.json' in os.environ['WORKBENCH_PROGRESS']"
    )
    notebook = made_up(tmp_path, {"off": source}, wishes={"turn_off": {"max_num_seqs": 1}})
    done = run(notebook, "cpu", turn_off=True)
    assert done.ok and done.to_dict()["turned_off"] == {"max_num_seqs": 1}
    assert not run(notebook, "cpu").ok
    with pytest.raises(UsageError, match="names nothing to turn off"):
        run(made_up(tmp_path, {"off": source}), "cpu", turn_off=True)


def test_it_stops_at_the_first_failure_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sources = {
        "define": "def half(x):\n    return x / 0",
        "fails": "x = 1\n\nassert half(x) == 2",
        "never": "print('never')",
    }
    report = tmp_path / "report.json"
    assert main([str(made_up(tmp_path, sources).path), "--device", "cpu", "--json", str(report)]) == 1
    out, err = capsys.readouterr()
    assert "never" not in out and "define: " in out
    assert "fails failed after" in err and "line 3: assert half(x) == 2" in err
    assert 'File "99_made_up[define]", line 2, in half\n    return x / 0' in err
    assert "lab/run.py" not in err, "frames of the runner only hide the reader's"
    told = json.loads(report.read_text(encoding="utf-8"))
    assert [(cell["id"], cell["ok"]) for cell in told["cells"]] == [("define", True), ("fails", False)]
    assert told["cells"][1]["error"] == {
        "type": "ZeroDivisionError", "message": "division by zero", "line": 3, "source": "assert half(x) == 2",
    }  # fmt: skip
    assert not told["ok"] and {"notebook", "device", "tier", "provenance", "values"} <= set(told)


@pytest.mark.parametrize(
    ("source", "message"),
    [("x = 1\nx = (2", "line 2: x = (2"), ("import sys\nsys.exit(0)", "line 2: sys.exit(0)")],
)
def test_a_cell_that_cannot_be_read_or_leaves_is_a_failure(tmp_path, capsys, source, message):
    assert not run(made_up(tmp_path, {"cell": source}), "cpu").ok
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("line", ["%matplotlib inline", "!ls", "%%time", "files = !ls", "t = %time f()", "display?"])
def test_what_only_ipython_understands_is_refused_before_anything_runs(tmp_path, capsys, line):
    notebook = made_up(tmp_path, {"first": "print('ran')", "magic": f"x = 1\n{line}\ny = 2"})
    assert main([str(notebook.path), "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert "ran" not in out and "cell magic" in err and repr(line) in err


@pytest.mark.parametrize("source", ["x = 7\ny = (x\n% 2)", "'''\n%time\n'''", "x = 1 !== 2", "await f()"])
def test_what_only_looks_like_a_magic_is_none(source):
    assert cells.magic(source) is None


def test_cells_for_cuda_are_skipped_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sources = {"here": "x = 1", "gpu": "raise RuntimeError", "later": "x"}
    done = run(made_up(tmp_path, sources, cell_wishes={"gpu": {"device": "cuda"}}), "cpu")
    assert done.ok and done.cells[1].skipped == "this cell needs a CUDA device and there is none in this run"
    assert "skipped: this cell needs a CUDA device" in capsys.readouterr().out
    whole = run(made_up(tmp_path, sources, wishes={"device": "cuda"}), "cpu")
    assert [cell.skipped is not None for cell in whole.cells] == [True] * 3
    assert not run(made_up(tmp_path, sources, cell_wishes={"gpu": {"device": "cuda"}}), "cuda").ok, "there it is run"


def test_tags_for_nbval_mean_the_same_here(tmp_path: Path):
    tags = {"skipped": ["nbval-skip"], "raises": ["raises-exception"]}
    reason = {"skipped": {"reason": "takes an hour"}}
    notebook = made_up(tmp_path, {"skipped": "1 / 0", "raises": "1 / 0"}, tags, cell_wishes=reason)
    done = run(notebook, "cpu")
    assert done.ok and done.cells[0].skipped == "takes an hour"
    assert not run(made_up(tmp_path, {"raises": "x = 1"}, tags), "cpu").ok, "it was to raise"


def test_figures_are_drawn_to_nowhere_and_closed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DISPLAY", ":0")  # where there is a screen, matplotlib complains that none is used
    sources = {
        "draw": "import matplotlib\nimport matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nplt.show()",
        "closed": "assert plt.get_fignums() == [] and matplotlib.get_backend().lower() == 'agg'",
    }
    assert run(made_up(tmp_path, sources), "cpu").ok
    assert [str(warning.message) for warning in recwarn if "non-interactive" in str(warning.message)] == []


def test_what_the_lesson_measured_is_reported(tmp_path: Path):
    values = {"itl": {"value": 2.5, "unit": "ms", "spread": [2.4, 2.6]}}
    source = f"from types import SimpleNamespace\n\nlesson = SimpleNamespace(tier='cpu', values=lambda: {values})"
    done = run(made_up(tmp_path, {"start": source, "fails": "1 / 0"}), "cpu", "tiny")
    assert (done.tier, done.values) == ("cpu", values), "even where a later cell failed"
    assert run(made_up(tmp_path, {"none": "x = 1"}), "cpu", "tiny").values == {}


def test_an_object_that_shows_itself_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = "class Shown:\n    def _ipython_display_(self):\n        print('itself')\n\n\nShown()"
    assert run(made_up(tmp_path, {"cell": source}), "cpu").ok
    out = capsys.readouterr().out
    assert "itself" in out and "Shown object" not in out


def test_notebooks_are_found_by_number_name_and_file():
    path = cells.folder() / "00_start_here.ipynb"
    assert {cells.find(name) for name in ("0", "00", "00_start_here", str(path))} == {path}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["99"], "notebook '99' is not known; here are 00_start_here"),
        (["17"], "is planned (17_multi_tenancy_and_decisions) and not written yet; here are 00_start_here"),
        (["none.ipynb"], "no such file"),
        (["00", "--json", "no/such/r.json"], "make it first"),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments, message, capsys):
    assert main([*arguments, "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_device_that_is_not_here_or_not_known_is_refused(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["00", "--device", "cuda"]) == 2
    monkeypatch.setenv("WORKBENCH_DEVICE", "tpu")
    assert main(["00"]) == 2
    err = capsys.readouterr().err
    assert "torch sees no GPU here" in err and "WORKBENCH_DEVICE='tpu' is not known; choose from auto, cpu, cuda" in err


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"cells": []}', '{"nbformat": 3, "cells": []}', '{"nbformat": 4, "cells": 3}',
     '{"nbformat": 4, "cells": [{"metadata": {}}]}'],
)  # fmt: skip
def test_a_damaged_notebook_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "99_damaged.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkbenchError, match="99_damaged"):
        cells.read(path)
    assert main([str(path), "--device", "cpu"]) == 1
    assert "99_damaged.ipynb" in capsys.readouterr().err
