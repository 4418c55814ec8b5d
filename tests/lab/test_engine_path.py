"""The table of the path says what really runs, for each way in which it can be another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernels.cpu import build, native
from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.lab import engine_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path)
    return path


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    cached = (build._library, native.function)
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    for one in cached:
        one.cache_clear()
    yield
    for one in cached:
        one.cache_clear()


def rows(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, tuple[str, str]]:
    monkeypatch.setattr("workbench.llm._tokenizer", lambda *_: None)
    return {str(row[0]): (str(row[1]), str(row[2])) for row in engine_path(open_llm(folder, **options)).rows}


def test_our_own_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(folder, monkeypatch)
    assert found["operations"][0] == f"C++ kernels, {build.build_name()} build" and "linear" in found["operations"][1]
    assert "write_kv" not in found["operations"][1], "no C++ kernel makes this one alone"
    assert found["attention"][0] == "cpu" and found["attention"][1].startswith("first choice on a CPU: a kernel that")
    assert found["sampling"] == ("cpu", "our own C++ kernel, without a sort")
    assert found["a decode step"][0] == "captured"
    assert found["weights"][0] == "float32" and found["weights"][1].startswith("quantization: none; ")


@pytest.mark.parametrize(
    ("options", "row", "here", "why"),
    [
        ({"enforce_eager": True}, "a decode step", "one call an operation", "enforce_eager=True"),
        ({"enable_kernel_fusion": False}, "a decode step", "one call an operation", "enable_kernel_fusion=False"),
        ({"enable_kernel_fusion": False}, "operations", "PyTorch, none fused", "enable_kernel_fusion=False"),
        ({"attention_backend": "sdpa"}, "a decode step", "one call an operation", "attention by sdpa cannot be"),
        ({"attention_backend": "sdpa"}, "attention", "sdpa", "attention_backend='sdpa'"),
        ({"quantization": "w8a16"}, "weights", "int8", "quantization: w8a16; asked for"),
    ],
)
def test_what_an_option_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], row: str, here: str, why: str
) -> None:
    found = rows(folder, monkeypatch, **options)[row]
    assert here in found[0] and found[1].startswith(why)


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(folder, monkeypatch)
    assert found["operations"][0] == "plain PyTorch" and "WORKBENCH_CPU_KERNELS=none" in found["operations"][1]
    assert found["attention"][1].startswith("the best on a CPU that can serve; not cpu: ")
    assert found["sampling"] == ("plain PyTorch", "not cpu: " + found["attention"][1].split("not cpu: ")[1])
    assert found["attention"][0] == "sdpa" and found["a decode step"][0] == "one call an operation"
