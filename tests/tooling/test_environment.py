"""One truth about what is installed: pyproject.toml. environment.yml, the constraints and the hooks agree with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FROM_CONDA = {"jupyterlab", "ipywidgets", "matplotlib"}
FROM_PIP = {"torch", "triton", "nbval"}


def by_name(lines):
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(item.name): item for item in found}


def conda():
    text = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    plain = [item for item in text["dependencies"] if isinstance(item, str)]
    (pip,) = [item["pip"] for item in text["dependencies"] if isinstance(item, dict)]
    return text, plain, pip


def pins(name):
    lines = (ROOT / ".ci" / name).read_text(encoding="utf-8").splitlines()
    return by_name(line for line in lines if line and not line.startswith("#"))


def test_environment_yml_asks_for_what_pyproject_asks_for():
    _, plain, pip = conda()
    assert "-e ." in pip, "the project itself"
    asked = by_name([item for item in plain if item != "pip" and not item.startswith("python=")])
    from_pip = by_name(item for item in pip if item != "-e .")
    assert not set(asked) & set(from_pip)
    wanted = by_name(PROJECT["dependencies"])
    assert set(asked) | set(from_pip) == set(wanted)
    for name, item in {**asked, **from_pip}.items():
        assert item.specifier == wanted[name].specifier, name


def test_environment_yml_takes_jupyter_from_conda_forge_and_torch_from_pip():
    text, plain, pip = conda()
    assert text["channels"] == ["conda-forge", "nodefaults"]
    assert set(by_name(item for item in plain if "=" in item and not item.startswith("python="))) >= FROM_CONDA
    assert set(by_name(item for item in pip if item != "-e .")) >= FROM_PIP
    (python,) = [item.removeprefix("python=") for item in plain if item.startswith("python=")]
    assert python in PROJECT["requires-python"].replace(">=", "")


def test_constraints_keep_every_floor_and_pin_all_that_is_asked_for():
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    wanted = by_name([*PROJECT["dependencies"], *extras])
    common, cpu, cuda = pins("constraints.txt"), pins("constraints-cpu.txt"), pins("constraints-cuda.txt")
    assert set(cpu) == {"torch", "triton"}
    assert set(cuda) == {"torch"}, "a CUDA build of torch brings its own Triton"
    assert cpu["torch"].specifier == cuda["torch"].specifier
    assert not set(common) & {"torch", "triton"}
    for name, item in wanted.items():
        (pin,) = {**common, **cpu}[name].specifier
        assert pin.operator == "==" and item.specifier.contains(Version(pin.version)), name


def test_the_floors_are_those_that_were_decided():
    floors = {name: str(item.specifier) for name, item in by_name(PROJECT["dependencies"]).items()}
    assert floors["torch"] == ">=2.11" and floors["triton"] == ">=3.6" and floors["transformers"] == ">=5.17"
    assert set(PROJECT["requires-python"].split(",")) == {">=3.11", "<3.14"}


def test_the_doctor_knows_the_same_floors():
    from workbench import doctor

    floors = {name: str(item.specifier) for name, item in by_name(PROJECT["dependencies"]).items()}
    assert floors["torch"] == f">={doctor.LEAST_TORCH}" and floors["triton"] == f">={doctor.LEAST_TRITON}"
    oldest, newest = doctor.TESTED_PYTHON, doctor.NEWEST_PYTHON
    assert PROJECT["requires-python"] == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"


def test_hooks_need_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "mypy", "import-linter"]
