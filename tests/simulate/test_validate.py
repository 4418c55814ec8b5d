"""A cost model is judged by steps that it was not calibrated by; what was found is kept beside the ceilings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model.tiny import make_tiny
from workbench.cli import main
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.measure import hardware as measured_hardware
from workbench.measure import step_times as timed
from workbench.measure.ceilings import Hardware, keep_efficiency, kept_cpu
from workbench.model.cost import Share
from workbench.simulate import ChipCost, model_shape
from workbench.simulate.chips import measured_chip, this_cpu
from workbench.simulate.validate import Validation, plot, validate

SHAPE = model_shape("smollm2-135m")
MADE = Hardware("cpu", "chip", "AVX2", 2**34, None, 2e10, {"float32": 1e11}, 2, "2026-01-01T00:00:00", {"torch": "2"})
TRUE = measured_chip(MADE).with_efficiency(
    compute=0.8, memory=0.4, overlap=0.1, step_seconds=5e-3, request_seconds=5e-4
)
LATE = 1.1
"""Steps that judge take so many times as long as `TRUE` says; calibration never sees it."""


def trace_of(point: timed.Point) -> StepTrace:
    """A step that takes what `TRUE` says."""
    shares = [Share(point.context - 1, 1)] * point.batch + [Share(0, point.chunk)] * (point.chunk > 0)
    ids = [str(number) for number in range(len(shares))]
    return StepTrace(
        step=0,
        time=0.0,
        duration=ChipCost(SHAPE, TRUE).step(shares).seconds * (LATE if point in timed.HELD_OUT else 1),
        scheduled=[
            {"request_id": name, "num_computed_tokens": share.start, "num_tokens": share.num_tokens, "kind": "any"}
            for name, share in zip(ids, shares, strict=True)
        ],
        skipped=[],
        preempted=[],
        finished=[],
        blocks={},
        cached_tokens=0,
        new_tokens=[{"request_id": name} for name in ids],
    )


def validated(hardware: Hardware) -> Validation:
    few, others = ({point: trace_of(point) for point in points} for points in (timed.CALIBRATION, timed.HELD_OUT))
    return validate(SHAPE, hardware, "float32", few, others)


def test_steps_that_were_held_out_judge_it() -> None:
    found = validated(MADE)
    assert found.after.median == pytest.approx(1 - 1 / LATE, abs=0.03)
    assert found.before.median > 0.3 and len(found.after.errors) == len(timed.HELD_OUT)
    for step in found.steps:
        assert step.modelled == pytest.approx(step.seconds / (LATE if step.held_out else 1), rel=0.05)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["steps"][0]["batch"] == timed.CALIBRATION[0].batch and told["p90_error"] == found.after.p90
    axes = plot(found).axes[0]
    assert "median error 9%" in axes.get_title() and sum(len(line.get_xdata()) for line in axes.lines[1:]) == 27
    assert validated(replace(MADE, efficiency={"compute": 0.01})).to_dict() == found.to_dict(), "an earlier one is gone"


def test_kinds_of_steps_are_mixed_and_then_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[timed.Point] = []

    def step_times(llm: Any, points: list[timed.Point], repeats: int) -> list[timed.StepTime]:
        order.extend(points)
        assert repeats == 3
        return [timed.StepTime(trace_of(point), (1.0,)) for point in points]

    monkeypatch.setattr(timed, "step_times", step_times)
    llm: Any = None
    few, others = timed.time_steps(llm, repeats=3)
    assert (tuple(few), tuple(others)) == (timed.CALIBRATION, timed.HELD_OUT) and not set(few) & set(others)
    assert sorted(order) == sorted([*few, *others]) and order != [*few, *others]
    assert all(trace == trace_of(point) for point, trace in (few | others).items())


def test_the_command_measures_draws_and_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(measured_hardware, "measure", lambda device: MADE)
    monkeypatch.setattr(measured_hardware, "_measured_here", set())
    monkeypatch.setattr(timed, "CALIBRATION", tuple(timed.Point(b, c) for b in (1, 2, 4) for c in (8, 40)))
    monkeypatch.setattr(timed, "HELD_OUT", (timed.Point(3, 20), timed.Point(0, 0, 30)))
    make_tiny("smollm2", tmp_path / "model")
    common = ["bench", "steps", "--model", str(tmp_path / "model"), "--device", "cpu", "--num-threads", "1",
              "--max-model-len", "64", "--num-kv-blocks", "32", "--repeats", "2"]  # fmt: skip
    picture, file = tmp_path / "steps.png", tmp_path / "steps.json"
    assert main([*common, "--plot", str(picture), "--output", str(file), "--keep"]) == 0
    text = capsys.readouterr().out
    assert "calibrated by" in text and "held out: median error" in text
    result = json.loads(file.read_text(encoding="utf-8"))
    assert picture.stat().st_size > 1000 and len(result["steps"]) == 8 and result["benchmark"] == "steps"
    kept = kept_cpu()
    assert kept is not None and kept.efficiency == result["efficiency"]
    assert this_cpu().efficiency.compute == result["efficiency"]["compute"]
    assert main([*common, "--repeats", "0"]) == 2 and "--repeats 0 must be at least 1" in capsys.readouterr().err
    with pytest.raises(UsageError, match="are not the ones that are kept"):
        keep_efficiency(MADE, {"compute": 0.5})
