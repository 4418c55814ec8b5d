"""`workbench bench gpu` without a GPU: no failure of a section reaches the others, and what it makes of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.cli import bench_gpu, main
from workbench.lab import recorded
from workbench.measure.gpu import cases, kernels, summary
from workbench.measure.gpu import drive as driver
from workbench.measure.gpu.drive import ROOT, drive
from workbench.measure.gpu.goals import goals as goals_of
from workbench.measure.gpu.report import Report, read
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
    found, states = ran("raises", "crashes_at_b", "killed", "one_error", "half_a_line", "good")
    assert [one["status"] for one in found.values()] == ["failed"] * 4 + ["ok"] * 2
    assert "the one thing that could go wrong" in found["raises"]["error"] and found["raises"]["rows"] == [{"value": 1}]
    assert "Traceback" in found["raises"]["output"]
    assert [row["item"] for row in found["crashes_at_b"]["rows"]] == ["a", "c"], "started again without what it died of"
    assert found["crashes_at_b"]["error"].startswith("signal 6 amid b: "), "and not what came after it"
    assert found["killed"]["error"] == "signal 9 amid x: it said nothing" and found["killed"]["rows"] == [{"value": 1}]
    assert found["one_error"]["error"] == "a: it does not fit" and len(found["one_error"]["rows"]) == 2
    assert found["half_a_line"]["rows"] == [{"item": "whole"}]
    assert found["good"]["rows"] == [{"value": 1, "name": "good", "tiny": True, "interpret": "1"}]
    assert [len(state) for state in states] == sorted(len(state) for state in states) and states[-1][-1]["rows"]


def test_one_that_hangs_ends_with_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over as soon as it has told a row: the clock jumps."""
    passed = [0.0]
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.05)
    states: list[str] = []

    def told(found: list[dict[str, Any]]) -> None:
        states.append(found[0]["status"])
        passed[0] += 600 * driver.PATIENCE if found[0]["rows"] and passed[0] == 0 else 0

    sections = [Section(name, f"{MADE}:{name}", 600, 600) for name in ("hangs", "good")]
    hangs, good = drive(TINY, told, lambda line: None, sections=sections, total=10_000)
    assert hangs["status"] == "timeout" and good["status"] == "ok"
    assert hangs["error"].endswith("amid the long one") and "running" in states, "told while it runs"
    assert gone(hangs["rows"][0]["child"]), "what the section started is still there"


def gone(process: int) -> bool:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_a_section_ends_with_a_run_that_is_killed() -> None:
    """By SIGKILL, upon which nothing can be done any more: the section sees its standard input end."""
    code = f"""
from workbench.measure.gpu import drive
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.sections import Section
drive.POLL_SECONDS = 0.05
told = lambda found: [print(row["child"], flush=True) for row in found[0]["rows"]]
drive.drive(Scale("cpu", tiny=True), told, lambda line: None, sections=[Section("hangs", "{MADE}:hangs", 600, 600)])
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        run.kill()
    assert gone(child)


def test_no_room_for_scratch_files_costs_one_section(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(driver, "_process", full)
    found, _ = ran("good")
    assert found["good"]["status"] == "failed" and "No space left on device" in found["good"]["error"]


def test_a_kernel_that_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While it is made, or when it is called: the other contenders and cases are timed all the same."""

    def fails() -> Any:
        raise ValueError("it does not compile")

    found = [
        cases.Case("a", fails),
        cases.Case("b", lambda: {"workbench": fails, "torch": lambda: None}, flops=1.0),
    ]
    monkeypatch.setattr(kernels, "cases", lambda name, scale: found)
    kernels.kernels(TINY, Report(tmp_path / "rows"), "fused")
    rows = read(tmp_path / "rows")[0]
    assert [(row["case"], row.get("contender"), "error" in row) for row in rows] == [
        ("a", None, True), ("b", "workbench", True), ("b", "torch", False)
    ]  # fmt: skip
    assert rows[0]["error"] == "ValueError: it does not compile" and rows[2]["seconds"] >= 0


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
    assert sdpa["times_ours"] == 2 and "times_ours" not in flash and "times_ours" not in broken
    assert silu["gbps"] == 3000 and silu["percent_of_copy"] == 75 and "percent_of_product" not in silu


def test_values_and_goals() -> None:
    values = summary.values(made_sections())
    goals = {goal["name"]: goal for goal in goals_of(made_sections(), "NVIDIA H200")}
    assert values["ceiling: copy"] == (4000, "GB/s", None)
    assert values["prefill d128 8192: workbench"][:2] == (500, "TFLOP/s")
    assert values["prefill d128 8192: sdpa flash by workbench"] == (2, "times as long", None)
    assert values["decode: workbench"][:2] == (3600, "GB/s"), "bound by memory, though it computes"
    assert values["m × 32, eager: outside the model"].value == 50
    assert goals["prefill d128 8192: workbench"]["reached"] and not goals["silu_mul"]["reached"]
    outside = goals["m × 32: outside the model"]
    assert goals["decode"]["reached"] and outside["reached"] and outside["found"] == pytest.approx(5)
    missing = goals["prefill d128 16384 causal: workbench"]
    assert missing["found"] is None and missing["reached"] is None, "what was not measured is not reached, nor missed"
    assert goals_of([], None) == [] and summary.values([]) == {}


def test_goals_of_one_card_are_asked_of_no_other() -> None:
    names = {goal["name"] for goal in goals_of(made_sections(), "NVIDIA A100-SXM4-80GB")}
    assert names == {"silu_mul", "decode", "m × 32: outside the model"}


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["bench", "gpu", "--out", str(tmp_path)]
    assert main([*out, "--device", "cpu"]) == 2 and "add --tiny" in capsys.readouterr().err
    assert main([*out, "--only", "engines"]) == 2 and "the sections are device, compile" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["bench", "gpu", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written to" in capsys.readouterr().err


def test_what_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def driven(scale: Scale, told: Any, say: Any, only: Any) -> list[dict[str, Any]]:
        """As `drive` would; one of two notebooks measured something."""
        assert not scale.tiny and scale.device == "cuda"
        values = {"kernel": {"value": 2.5, "unit": "ms", "spread": [2.0, 3.0]}}
        made = [{"notebook": "06_kernel_fusion.ipynb", "ok": True, "tier": "gpu", "values": values},
                {"notebook": "07_flash_attention.ipynb", "ok": False, "error": "ended", "values": {}}]  # fmt: skip
        sections = made_sections()
        sections[0]["rows"][0]["device"] = "NVIDIA H200"
        sections.append({"name": "notebooks", "status": "failed", "error": "ended", "rows": made})
        told(sections)
        return sections

    monkeypatch.setattr(driver, "drive", driven)
    assert main(["bench", "gpu", "--out", str(tmp_path / "out")]) == 1, "one section failed"
    text = capsys.readouterr().out
    assert text.startswith("NVIDIA H200, driver 1.2, commit abc")
    shown = {" ".join(line.split()) for line in text.splitlines()}
    assert "prefill d128 8192 500 TFLOP/s 62 % of product sdpa flash 250, sdpa cudnn failed" in shown
    assert "m 32 100 100 10.00 10.00 5.0 %" in shown
    assert "silu_mul ≥ 80 75 % of copy no" in shown
    assert "prefill d128 8192: workbench ≥ 450 500 TFLOP/s yes FlashAttention-2 on an H100: 370" in shown
    assert "prefill d128 16384: workbench ≥ 450 not measured TFLOP/s – FlashAttention-2 on an H100: 370" in shown
    assert "This device reaches at most: copy 4000 GB/s, product 800 TFLOP/s." in shown
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpu.json", "recorded_06.json", "recorded_gpu.json"
    ]  # fmt: skip
    # As the lesson of that notebook finds it, beside its own number.
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "none")
    assert recorded.recorded_values("06", "kernel") == []
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "out")
    (tmp_path / "out" / "gpu.json").unlink()  # only the recorded runs are put there
    (value,) = recorded.recorded_values("06", "kernel")
    assert value[:4] == (2.5, "ms", (2.0, 3.0), "NVIDIA H200") and "random weights" in value.workload


def test_what_cannot_be_written_or_reckoned_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bench_gpu._Kept(tmp_path, Scale(), None)
    odd = made_sections()
    odd[2]["rows"][0]["seconds"] = 0.0
    kept.told(odd)
    assert "ZeroDivisionError" in kept.trouble
    assert json.loads((tmp_path / "gpu.json").read_text())["sections"] == odd, "the rows are kept as they are"
    kept.told([*made_sections(), {"name": "odd", "status": "ok", "rows": [{"path": tmp_path}]}])
    assert kept.trouble == "" and json.loads((tmp_path / "gpu.json").read_text())["sections"][-1]["rows"]

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    capsys.readouterr()
    monkeypatch.setattr(bench_gpu, "write_atomically", full)
    for _ in range(3):
        kept.told(made_sections())
    assert "No space left on device" in kept.trouble and len(kept.result["sections"]) == 4
    assert capsys.readouterr().err.count("No space left") == 1, "said once, not at every row"
