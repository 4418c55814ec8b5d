"""Whole models, made once: a run of this machine comes before a recorded one, and a tiny one is really made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.errors import WorkbenchError
from workbench.lab import quantized_models, recorded
from workbench.lab.quantized_models import ALGORITHMS, whole_models


def run(path: Path, kl: float, date: str = "2026-01-02") -> None:
    names = {"KL": (kl, "nats"), "perplexity": (9.0, ""), "agreement": (80.0, "%"), "MB": (100.0, "MB")}
    values = {f"{how} {name}": {"value": value, "unit": unit, "spread": None}
              for how in ALGORITHMS for name, (value, unit) in names.items()}  # fmt: skip
    values["floats perplexity"] = {"value": 8.0, "unit": "", "spread": None}
    data = {"schema_version": 1, "notebook": "10", "device": "a CPU", "driver": None, "provenance": {"date": date},
            "workload": "some tokens", "values": values}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "recorded")
    return tmp_path


def test_this_machines_own_run_comes_first(empty: Path) -> None:
    with pytest.raises(WorkbenchError, match="make artifacts"):
        whole_models()
    run(empty / "recorded" / "old.json", 0.3)
    run(empty / "recorded" / "new.json", 0.2, date="2026-05-01")
    found = whole_models()
    assert found.models["gptq"].kl == 0.2 and found.source.startswith("recorded: a CPU, 2026-05-01; some tokens")
    run(quantized_models.folder() / "run.json", 0.1)
    assert whole_models().models["rtn"].kl == 0.1 and whole_models().source.startswith("made here")
    assert whole_models().table().rows[1] == ["rtn", "100", "9.00", "0.100", "80.0"]


def test_a_run_that_lacks_a_value_says_what_to_do(empty: Path) -> None:
    run(quantized_models.folder() / "run.json", 0.1)
    path = quantized_models.folder() / "run.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["values"]["awq MB"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(WorkbenchError, match=r"lacks 'awq MB': remove .* and run `make artifacts`"):
        whole_models()


def test_the_courses_own_run_is_there_and_in_order() -> None:
    """What the notebook asserts where nothing was made yet."""
    runs = [one for one in recorded.recorded_runs("10") if "rtn KL" in one.values]
    assert runs, "no run was recorded"
    values = runs[0].values
    assert max(values["gptq KL"].value, values["awq KL"].value) < values["rtn KL"].value
    assert all(values[f"{how} perplexity"].value > values["floats perplexity"].value for how in ALGORITHMS)
