"""No step leaves a tensor on the CPU while the model is on a GPU; shown without a GPU (`tests/model/fake_cuda.py`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.model.fake_cuda import BUGS, LOGPROBS, ON_DEVICE, ON_HOST
from workbench.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The compiled device guard, as arguments for the run; none where torch has a real one."""
    if torch.version.cuda is not None and torch.cuda.is_available():
        return []
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("no C++ compiler here, and this build of torch has no device guard for CUDA of its own")
    folder, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("guard") / "guard.so"
    command = [compiler, "-std=c++20", "-shared", "-fPIC", str(Path(__file__).with_name("cuda_guard.cpp"))]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{folder / 'include'}"]
    command += ["-o", str(library), f"-L{folder / 'lib'}", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [str(library)]


@pytest.fixture(scope="module")
def outcomes(guard: list[str]) -> dict[str, str | None]:
    # In a process of its own: a registered guard stays, and torch would then believe in a device that is not there.
    command = [sys.executable, "-m", "tests.model.fake_cuda", *guard]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_prefill_decode_and_sampling_stay_on_the_device(outcomes: dict[str, str | None]) -> None:
    assert outcomes["true code"] is None


@pytest.mark.parametrize("bug", BUGS)
def test_a_tensor_left_on_the_cpu_is_caught(outcomes: dict[str, str | None], bug: str) -> None:
    error = outcomes[bug]
    assert error is not None and "device" in error and "cpu" in error


def test_every_sampling_option_is_either_tried_or_no_affair_of_the_device() -> None:
    assert {field.name for field in fields(SamplingParams)} == {*ON_DEVICE, *ON_HOST, *LOGPROBS}
