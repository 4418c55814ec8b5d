"""``workbench info attention``: the engine's own choice, here and on cards that are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.deepseek_v3 import DeepseekV3Config

from tests.model.tiny import make_tiny
from workbench.attention.table import CANDIDATES
from workbench.cli import main
from workbench.cli.info_attention import TONES


def asked(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["info", "attention", "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def reasons(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["verdict"], one["reason"]) for one in found["candidates"]}


def test_another_card(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--model", "llama-3.1-8b", "--capability", "9.0", "--installed", "fa3,triton")
    assert (found["auto"], found["architecture"], found["sampling"]) == ("triton", "Hopper", None)
    verdicts = reasons(found)
    assert set(verdicts) == set(CANDIDATES) and {kind for kind, _ in verdicts.values()} <= set(TONES)
    assert verdicts["fa3"][0] == "passed over" and "never yet run on hardware" in verdicts["fa3"][1]
    assert verdicts["flashinfer"] == ("refused", "not installed: pip install flashinfer-python")
    assert [peer["order"][0] for peer in found["peers"]] == ["fa3", "FLASH_ATTN"]
    assert found["needs"]["head_dim"] == 128 and found["needs"]["dtype"] == "bfloat16"
    assert asked(capsys, "--capability", "7.5", "--dtype", "float16")["auto"] == "sdpa"
    assert asked(capsys, "--device", "cuda", "--capability", "8.0", "--head-dim", "300")["auto"] == "sdpa"
    invariant = asked(capsys, "--batch-invariant", "--capability", "9.0")
    assert invariant["auto"] == "triton" and "vendor's library" in invariant["batch_invariant"]["why_not"]


def test_a_model_that_is_only_counted(capsys: pytest.CaptureFixture[str]) -> None:
    for name, kv_heads, head_dim in (("gemma-2b", 1, 256), ("llama-2-70b", 8, 128)):
        needs = asked(capsys, "--model", name, "--capability", "9.0")["needs"]
        assert (needs["num_kv_heads"], needs["head_dim"]) == (kv_heads, head_dim)
    assert asked(capsys, "--model", "deepseek-v3", "--capability", "9.0")["needs"]["latent"] == [512, 64]
    assert main(["info", "attention", "--model", "gemma-9b"]) == 2
    told = capsys.readouterr().err
    assert "'gemma-9b' is not known" in told and "gemma-2b" in told and "config.json" in told


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--device", "cpu")
    assert found["auto"] == "cpu" and found["sampling"]["name"] == "cpu" and found["batch_invariant"] is None
    assert asked(capsys, "--device", "cpu", "--batch-invariant")["batch_invariant"] == {"served": True, "why_not": ""}
    refused = asked(capsys, "--device", "cpu", "--dtype", "bfloat16")
    assert refused["auto"] == "sdpa" and "bfloat16" in reasons(refused)["cpu"][1]


def test_the_table_says_why_and_what_others_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "attention", "--capability", "8.9", "--block-size", "32"]) == 0
    told = capsys.readouterr().out
    for words in ("block_size=32, and it takes pages of a multiple of 256", "never yet run on hardware", "on Ada (",
                  "SGLang 0.5.23", "vLLM 0.33", "flashinfer → triton", "server_args.py"):  # fmt: skip
        assert words in told


def test_latent_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DeepseekV3Config().save_pretrained(tmp_path)
    model = ("--model", str(tmp_path / "config.json"), "--capability", "9.0", "--installed", "flashmla,flashinfer")
    for size, verdict in ((64, "passed over"), (16, "refused")):
        found = asked(capsys, *model, "--block-size", str(size))
        assert found["auto"] == "triton" and found["needs"]["latent"] == [512, 64]
        verdicts = reasons(found)
        assert verdicts["flashmla"][0] == verdict and "latent attention (MLA)" in verdicts["flashinfer"][1]
        assert [peer["order"][0] for peer in found["peers"]] == ["fa3", "FLASH_ATTN_MLA"]
    assert main(["info", "attention", *model]) == 0
    told = capsys.readouterr().out
    assert "128 heads over latents of 576" in told and "Why this order: FlashMLA was written for Hopper" in told
    assert main(["info", "attention", *model, "--head-dim", "64"]) == 2
    assert "--head-dim 64: the model has latent attention" in capsys.readouterr().err


@pytest.mark.parametrize(("capability", "first"), [("12.0", "FLASH_ATTN"), ("7.5", "FLASHINFER")])
def test_others_are_told_for_every_card(capsys: pytest.CaptureFixture[str], capability: str, first: str) -> None:
    found = asked(capsys, "--capability", capability)
    assert [peer["order"][0] for peer in found["peers"]] == ["flashinfer", first]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--capability", "sm90"), "--capability 'sm90' is no compute capability: give it as 8.0"),
        (("--capability", "9.0", "--device", "cpu"), "leave one of them out"),
        (("--installed", "cpu"), "--installed 'cpu' is no backend that calls a library; there are triton, flash"),
        (("--device", "cuda"), "torch finds no GPU here; say which one is meant with --capability"),
        (("--head-dim", "0"), "--head-dim 0 is too small: the least is 1"),
        (("--model", "llama-9"), "llama-9"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], told: str) -> None:
    assert main(["info", "attention", *flags]) == 2
    assert told in capsys.readouterr().err


def test_a_variable_of_vllms_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")
    make_tiny("smollm2", tmp_path)
    monkeypatch.setattr("workbench.llm._tokenizer", lambda *_: None)
    assert main(["generate", "x", "--model", str(tmp_path), "--device", "cpu", "--attention-backend", "fa3"]) == 2
    told = capsys.readouterr().err.splitlines()
    line = (
        "workbench: VLLM_ATTENTION_BACKEND=FLASHINFER is vLLM's and not read here: use --attention-backend flashinfer"
    )
    assert told[-2].startswith(line) and told[-1].startswith(
        "workbench: attention_backend='fa3' cannot serve this model"
    )
