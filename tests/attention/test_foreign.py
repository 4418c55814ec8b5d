"""Settings of vLLM's that are set: answered with the option here, and without effect."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.attention.foreign import unread_settings
from workbench.attention.peers import VLLM_NAMES
from workbench.config import EngineConfig


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FLASHINFER", "use --attention-backend flashinfer (attention_backend='flashinfer')"),
        ("FLASHINFER_VLLM_V1", "use --attention-backend flashinfer"),
        ("TRITON_ATTN", "use --attention-backend triton"),
        ("TORCH_SDPA", "use --attention-backend sdpa"),
        ("FLASH_ATTN", "use --attention-backend (attention_backend=…): fa3 on Hopper, flash_attn on Ampere and Ada"),
        ("FlashMLA", "use --attention-backend flashmla"),
        ("TRITON_MLA", "use --attention-backend triton"),
        ("ROCM_FLASH", "no backend is like it: --attention-backend takes auto, cpu, "),
    ],
)
def test_the_backend_is_answered_with_the_option(name: str, told: str) -> None:
    [message] = unread_settings({"VLLM_ATTENTION_BACKEND": name})
    assert message.startswith(f"VLLM_ATTENTION_BACKEND={name} is vLLM's and not read here") and told in message


def test_every_named_option_is_one() -> None:
    for name in VLLM_NAMES:
        [message] = unread_settings({"VLLM_ATTENTION_BACKEND": name})
        for value in re.findall(r"attention_backend='(\w+)'", message):
            EngineConfig(attention_backend=value)


def test_the_samplers_variables() -> None:
    told = unread_settings({"VLLM_USE_FLASHINFER_SAMPLER": "1", "VLLM_FLASHINFER_FORCE_TENSOR_CORES": "1"})
    assert "use --sampling-backend flashinfer (sampling_backend='flashinfer')" in told[0]
    assert "leave it out" in told[1] and len(told) == 2
    assert "sampling_backend='torch'" in unread_settings({"VLLM_USE_FLASHINFER_SAMPLER": "0"})[0]
    assert unread_settings({"VLLM_ATTENTION_BACKEND": "", "VLLM_USE_V1": "1"}) == []


def test_opening_a_model_says_so_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tiny("smollm2", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = open_llm(tmp_path).attention
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "TORCH_SDPA")
    with pytest.warns(UserWarning, match="VLLM_ATTENTION_BACKEND=TORCH_SDPA is vLLM's and not read here: use --att"):
        llm = open_llm(tmp_path)
    assert llm.attention == before and llm.runner.decoder.attention.name == before.name == "cpu"
