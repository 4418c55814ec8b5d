"""Recorded runs: only whole files of real runs, shown with their device and in the reader's unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lessons import begin
from workbench.errors import UsageError, WorkbenchError
from workbench.lab import recorded
from workbench.lab.course import notebooks

COURSE = recorded.FOLDER


def run(path: Path, device: str = "NVIDIA H200", date: str = "2026-01-02", value: float = 0.5, **changes: Any) -> Path:
    """A recorded run in the file's own words, written by hand so that the reader is tested against the description."""
    data = {
        "schema_version": 1,
        "notebook": "01",
        "device": device,
        "driver": "580.1",
        "provenance": {"date": date},
        "workload": "tier gpu",
        "values": {"decode": {"value": value, "unit": "ms", "spread": [0.4, 0.6]}},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data | changes), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "recorded")
    return tmp_path / "recorded"


def unfit(path: Path) -> list[str]:
    """What a committed run lacks: another reader must be able to tell where its numbers come from."""
    found = recorded.read_run(path)
    known = {notebook.number for notebook in notebooks()}
    wrong = [] if found.notebook in known else [f"no notebook {found.notebook}"]
    wrong += [f"no {name}" for name in ("commit", "date", "torch", "cpu") if not found.provenance.get(name)]
    return wrong + ([] if found.workload else ["no workload"])


def test_every_file_of_the_course_is_whole(folder: Path) -> None:
    assert {path.name: wrong for path in COURSE.glob("*.json") if (wrong := unfit(path))} == {}
    assert unfit(run(folder / "a.json", notebook="99"))[:2] == ["no notebook 99", "no commit"]


def test_the_newest_run_of_each_device_counts(folder: Path) -> None:
    run(folder / "a.json", value=1)
    run(folder / "b.json", value=2, date="2026-03-01")
    run(folder / "c.json", value=3, date="2026-02-01")
    run(folder / "d.json", "NVIDIA A100", value=4)
    run(folder / "e.json", value=5, notebook="02")
    found = recorded.recorded_values("01", "decode")
    assert sorted((past.device, past.value) for past in found) == [("NVIDIA A100", 4), ("NVIDIA H200", 2)]
    assert found[0].spread == (0.4, 0.6)
    assert recorded.recorded_values("01", "prefill") == [] and recorded.recorded_values("03", "decode") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "no recorded run of schema version 1"),
        ({"device": None}, "device=None is missing or of the wrong type"),
        ({"driver": 580}, "driver=580 is missing"),
        ({"workload": 5}, "workload=5"),
        ({"values": {}}, "holds no values"),
        ({"values": {"decode": 3}}, "decode=3 is not"),
        ({"values": {"decode": {"value": "3", "unit": "ms"}}}, "is not {value, unit, spread}"),
        ({"values": {"decode": {"value": 3}}}, "is not {value, unit, spread}"),
        ({"values": {"decode": {"value": 3, "unit": "ms", "spread": [1]}}}, "is not {value, unit, spread}"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkbenchError, match=f"a.json.*{message}"):
        recorded.read_run(run(folder / "a.json", **changes))
    (folder / "b.json").write_text("{")
    with pytest.raises(WorkbenchError, match=r"b\.json is no recorded run"):
        recorded.read_run(folder / "b.json")


def test_what_a_lesson_measured_is_recorded_and_shown_elsewhere(tmp_path: Path, monkeypatch, capsys) -> None:
    lesson = begin(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="nothing was measured yet"):
        lesson.record(tmp_path / "recorded" / "01-mine.json")
    lesson.measure("decode", 2.5, "ms")
    path = lesson.record(tmp_path / "recorded" / "01-mine.json", workload="one request")
    found = recorded.read_run(path)
    assert found.values["decode"][:3] == (2.5, "ms", None) and found.provenance["torch"]
    assert (found.notebook, found.driver, found.workload) == ("01", None, "one request")
    assert found.device == found.provenance["cpu"]  # a processor's name; "cpu" would tell a reader nothing
    capsys.readouterr()
    lesson.measure("decode", 5.0, "ms")
    shown = capsys.readouterr().out
    assert f"2.5 ms on {found.device}" in shown and f"recorded: {found.device}, one request" in shown


def test_a_recorded_run_in_another_unit_is_refused(tmp_path: Path, monkeypatch) -> None:
    lesson = begin(monkeypatch, tmp_path)
    run(tmp_path / "recorded" / "a.json")
    with pytest.raises(UsageError, match="decode: recorded on NVIDIA H200 in 'ms' and measured in 's'"):
        lesson.measure("decode", 0.001, "s")
    assert lesson.measure("decode", 1.0, "ms").recorded[0].value == 0.5


@pytest.mark.parametrize("settings", [{"tier": "tiny"}, {"WORKBENCH_TURN_OFF": '{"max_num_seqs": 1}'}])
def test_a_test_run_is_no_record(tmp_path: Path, monkeypatch, settings: dict[str, str]) -> None:
    lesson = begin(monkeypatch, tmp_path, **settings)
    lesson.measure("decode", 1.0, "ms")
    with pytest.raises(UsageError, match=r"a test run .* is no record"):
        lesson.record(tmp_path / "recorded" / "a.json")
