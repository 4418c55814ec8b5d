"""Names that stay: notebooks, other tests and readers rely on them. Adding is free; removing or renaming fails here.

tests/data/interfaces.json lists what exists today; a room that is built later adds its names there.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import workbench
from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.outputs import RequestMetrics, RequestOutput
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
NAMES = json.loads((ROOT / "tests/data/interfaces.json").read_text(encoding="utf-8"))


def missing(wanted: list[str], found: object) -> list[str]:
    """Names of the snapshot that ``found`` (a collection of names, or an object with attributes) no longer has."""
    if isinstance(found, (list, tuple, set, dict)):
        return [name for name in wanted if name not in found]
    return [name for name in wanted if not hasattr(found, name)]


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)


def fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def test_public_names_of_the_package():
    assert missing(NAMES["workbench"], workbench) == []
    assert missing(NAMES["workbench"], workbench.__all__) == []


def test_engine_options_and_their_values():
    options = {field.name: field.metadata for field in dataclasses.fields(EngineConfig)}
    assert missing(list(NAMES["EngineConfig"]), options) == []
    for name, choices in NAMES["EngineConfig"].items():
        found = options[name].get("choices", ())
        assert missing(choices or [], list(found)) == [], name
        assert bool(found) == bool(choices), f"{name}: the values of an option are part of its name"


def test_sampling_params():
    assert missing(NAMES["SamplingParams"], fields(SamplingParams)) == []


def test_what_comes_back():
    assert missing(NAMES["RequestOutput"], [*fields(RequestOutput), *vars(RequestOutput)]) == []
    assert missing(NAMES["RequestMetrics"], fields(RequestMetrics)) == []


def test_step_trace():
    assert missing(NAMES["StepTrace"], [*fields(StepTrace), "to_json", "from_json"]) == []
    assert callable(StepTrace.to_json) and callable(StepTrace.from_json)


class OnesRunner:
    """Samples token 1 wherever a token is due."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult([1 if item.samples else None for item in plan.scheduled])


def test_what_stands_inside_a_step_trace():
    config = EngineConfig(num_kv_blocks=8, max_model_len=16, block_size=4, max_num_seqs=1)
    engine = Engine(config, OnesRunner(), clock=VirtualClock())
    for _ in range(2):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=1))
    trace = engine.step()
    for name in ("scheduled", "skipped", "finished", "new_tokens"):
        (entry,) = getattr(trace, name)
        assert missing(NAMES[f"StepTrace.{name}"], entry) == [], name
    for name in ("blocks", "phases"):
        assert missing(NAMES[f"StepTrace.{name}"], getattr(trace, name)) == [], name
    assert StepTrace.from_json(trace.to_json()) == trace


def test_engine_and_llm_methods():
    assert missing(NAMES["Engine"], Engine) == []
    assert missing(NAMES["Engine.add_request"], parameters(Engine.add_request)) == []
    assert missing(NAMES["LLM"], workbench.LLM) == []
    assert missing(NAMES["LLM.generate"], parameters(workbench.LLM.generate)) == []


def test_the_lab():
    import workbench.lab as lab

    assert missing(NAMES["workbench.lab"], lab) == []
    assert missing(NAMES["Lesson"], lab.Lesson) == []
    assert missing(NAMES["Lesson.measure"], parameters(lab.Lesson.measure)) == []
    assert parameters(lab.start) == ["number"]
    assert parameters(lab.Lesson.predict)[1:] == ["name", "value", "unit", "choices"]


def test_the_simulator():
    import workbench.simulate as simulator

    assert missing(NAMES["workbench.simulate"], simulator) == []
    assert missing(NAMES["workbench.simulate"], simulator.__all__) == []
    assert parameters(simulator.simulated_engine) == NAMES["simulated_engine"]


def test_kernels():
    import kernels

    assert missing(NAMES["kernels"], kernels) == []


@pytest.mark.parametrize("command", NAMES["commands"])
def test_commands_and_their_json(command, capsys):
    from workbench.cli import main

    with pytest.raises(SystemExit) as ended:
        sys.exit(main([*command.split(), "--help"]))
    assert not ended.value.code
    assert "--json" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys):
    from workbench.cli import main

    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["dance"]))
    assert ended.value.code == 2
    assert "dance" in capsys.readouterr().err


def test_the_console_script_points_at_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["scripts"]["workbench"].split(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("target", NAMES["make"])
def test_make_targets(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_guard_sees_a_removal():
    assert missing(["step", "dance"], Engine) == ["dance"]
    assert missing(["a", "b"], ["b", "c"]) == ["a"]
