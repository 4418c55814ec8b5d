"""`workbench bench gpu` without a GPU: no failure of a section reaches the others, and what it makes of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.lab.recorded import read_run
from workbench.measure.gpu import summary
from workbench.measure.gpu.drive import ROOT, drive
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.sections import SECTIONS, TOTAL_SECONDS, Section

TINY = Scale("cpu", tiny=True)
MADE = "tests.measure.gpu_sections"


def ran(*functions: str, seconds: float = 60, **options: Any) -> tuple[dict[str, Any], list[Any]]:
    """By name what became of sections of `tests.measure.gpu_sections`, and each state that was told."""
    states: list[Any] = []
    sections = [Section(name, f"{MADE}:{name}", seconds, options.pop(f"quick_{name}", seconds)) for name in functions]
    told = lambda found: states.append(json.loads(json.dumps(found)))
    scale = options.pop("scale", TINY)
    found = drive(scale, told, lambda line: None, sections=sections, **options)
    return {one["name"]: one for one in found}, states


def test_one_that_fails_costs_the_others_nothing() -> None:
    found, states = ran("raises", "crashes_at_b", "one_error", "half_a_line", "good")
    assert [one["status"] for one in found.values()] == ["failed"] * 3 + ["ok"] * 2
    assert "the one thing that could go wrong" in found["raises"]["error"] and found["raises"]["rows"] == [{"value": 1}]
    assert "Traceback" in found["raises"]["output"]
    assert [row["item"] for row in found["crashes_at_b"]["rows"]] == ["a", "c"], "started again without what it died of"
    assert "1 crashes" in found["crashes_at_b"]["error"]
    assert "it does not fit" in found["one_error"]["error"] and len(found["one_error"]["rows"]) == 2
    assert found["half_a_line"]["rows"] == [{"item": "whole"}]
    assert found["good"]["rows"] == [{"value": 1, "name": "good", "tiny": True, "interpret": "1"}]
    assert [len(state) for state in states] == sorted(len(state) for state in states) and states[-1][-1]["rows"]


def test_one_that_hangs_ends_with_all_it_started() -> None:
    found, states = ran("hangs", "good", seconds=0.5)
    assert found["hangs"]["status"] == "timeout" and found["good"]["status"] == "ok"
    assert "amid the long one" in found["hangs"]["error"] and found["hangs"]["seconds"] < 30
    assert any(state[0]["status"] == "running" and state[0]["rows"] for state in states), "told while it runs"
    for _ in range(50):
        try:
            os.kill(found["hangs"]["rows"][0]["child"], 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("what the section started is still there")


def test_what_is_left_out_says_why() -> None:
    found, _ = ran("good", "one_error", quick_one_error=0, scale=Scale("cpu", tiny=True, quick=True))
    assert found["good"]["status"] == "ok" and found["one_error"]["error"] == "not part of a quick run"
    assert ran("good", total=0.05)[0]["good"]["error"] == "no time was left"
    assert list(ran("good", "raises", only=("good",))[0]) == ["good"]
    found, _ = ran("no_gpu", "good")
    assert found["no_gpu"]["status"] == "failed" and found["good"]["error"] == "there is no GPU"


def test_limits_add_up_to_less_than_eight_minutes() -> None:
    assert sum(one.seconds for one in SECTIONS) <= TOTAL_SECONDS < 480 and sum(one.quick for one in SECTIONS) <= 200
    assert len({one.name for one in SECTIONS}) == len(SECTIONS)


def timed(case: str, contender: str, seconds: float, flops: float = 0, moved: float = 0) -> dict[str, Any]:
    times = {"seconds": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds, "graph": True}
    return {"case": case, "contender": contender, "flops": flops, "bytes": moved, **times}


def made_sections() -> list[dict[str, Any]]:
    rows = [
        [{"provenance": {"commit": "abc", "date": "2026-01-01"}, "device": "NVIDIA Made Up", "driver": "1.2"}],
        [{"ceiling": "copy", "rate": 4e12}, {"ceiling": "copy", "rate": 3e12}, {"ceiling": "product", "rate": 800e12}],
        [
            timed("prefill d128 8192", "workbench", 2.0, flops=1e15),
            timed("prefill d128 8192", "sdpa flash", 4.0, flops=1e15),
            {"case": "prefill d128 8192", "contender": "sdpa cudnn", "flops": 1e15, "bytes": 0, "error": "no"},
            timed("silu_mul", "workbench", 1.0, moved=3e12),
            timed("decode", "workbench", 1.0, flops=1e12, moved=3.6e12),
        ],
        [
            {"model": "m", "graphs": graphs, "concurrency": 32, "output_throughput": 100.0, "step_seconds": 0.01,
             "forward_share": share}
            for graphs, share in ((True, 0.95), (False, 0.5))
        ],
    ]  # fmt: skip
    return [{"name": str(n), "status": "ok", "rows": one} for n, one in enumerate(rows)]


def test_rates_stand_beside_what_this_card_reaches() -> None:
    flash, sdpa, broken, silu, _ = summary.with_rates(made_sections())[2]["rows"]
    assert flash["tflops"] == 500 and flash["percent_of_product"] == pytest.approx(62.5) and "gbps" not in flash
    assert sdpa["tflops"] == 250 and "tflops" not in broken
    assert silu["gbps"] == 3000 and silu["percent_of_copy"] == 75 and "percent_of_product" not in silu


def test_values_and_goals() -> None:
    values, goals = summary.values(made_sections()), {g["name"]: g for g in summary.goals(made_sections())}
    assert values["ceiling: copy"] == (4000, "GB/s", None)
    assert values["prefill d128 8192: workbench"][:2] == (500, "TFLOP/s")
    assert values["decode: workbench"][:2] == (3600, "GB/s"), "bound by memory, though it computes"
    assert values["m × 32, eager: outside the model"].value == 50
    assert goals["prefill d128 8192: workbench"]["reached"] and not goals["silu_mul"]["reached"]
    assert goals["decode"]["reached"] and goals["m × 32"]["reached"] and goals["m × 32"]["found"] == pytest.approx(5)
    missing = goals["prefill d128 16384 causal: workbench"]
    assert missing["found"] is None and not missing["reached"], "what was not measured is not reached"
    assert summary.goals([]) and summary.values([]) == {}


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["bench", "gpu", "--out", str(tmp_path)]
    assert main([*out, "--device", "cpu"]) == 2 and "add --tiny" in capsys.readouterr().err
    assert main([*out, "--only", "engines"]) == 2 and "the sections are device, compile" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["bench", "gpu", "--out", str(tmp_path / "file")]) == 1 and "cannot be made" in capsys.readouterr().err


BARE = """
import sys
MISSING = ("gguf", "IPython", "ipywidgets", "ipykernel", "jupyterlab", "jupyter_client", "nbformat", "nbclient",
           "nbval", "hypothesis", "yaml", "accelerate", "pytest_timeout")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""
"""As a ``sitecustomize``: every Python that the run starts is without what a bare GPU machine lacks."""


def rehearse(tmp_path: Path, *flags: str, seconds: float) -> dict[str, Any]:
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    environment = kept | {"PYTHONPATH": str(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1",
                          "WORKBENCH_HOME": str(tmp_path / "home")}  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "workbench",
        "bench",
        "gpu",
        "--device",
        "cpu",
        "--tiny",
        "--out",
        str(out),
        *flags,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    found = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, [one for one in found["sections"] if one["status"] == "failed"]
    assert 0 < len(list(out.iterdir())) <= 8
    return found


def test_the_first_section_rehearsed_on_a_bare_machine(tmp_path: Path) -> None:
    found = rehearse(tmp_path, "--only", "device", "--commit", "abc123", seconds=120)
    assert found["provenance"]["torch"] and found["provenance"]["commit"] == "abc123"
    assert found["device"] and found["workload"]["tiny"] and not any(goal["reached"] for goal in found["goals"])


@pytest.mark.slow
def test_the_whole_run_rehearsed_on_a_bare_machine(tmp_path: Path) -> None:
    found = rehearse(tmp_path, seconds=900)
    run = read_run(tmp_path / "out" / "recorded_gpu.json")
    assert run.notebook == "gpu" and "rehearsal" in run.workload and run.provenance == found["provenance"]
    assert {"ceiling: copy", "ceiling: product"} <= set(run.values)
    rows = {one["name"]: one["rows"] for one in found["sections"]}
    assert [one["name"] for one in found["sections"]] == [one.name for one in SECTIONS]
    assert {row["contender"] for row in rows["attention"]} == {"workbench", "sdpa math", "flex"}
    assert {row["outcome"] for row in rows["correctness"]} == {"passed"}
    assert [row["graphs"] for row in rows["engine-qwen3-0.6b"] if "concurrency" in row] == [True, True, False, False]
    assert all(row["seconds"] > 0 for row in rows["compile"])
