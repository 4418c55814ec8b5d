"""The weights in the peers' forms: the same numbers, made once, and a quantizer that fails is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.model.gguf_files import write_gguf
from workbench.errors import WorkbenchError
from workbench.measure.peers.weights import gguf_as, gguf_bytes, gguf_kind, hf_folder, made_folder
from workbench.model.gguf import iter_tensors


@pytest.fixture
def gguf(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))

    def write(kind="Q4_1", tied=True) -> Path:
        torch.manual_seed(1)
        shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64}  # fmt: skip
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=tied))
        return write_gguf(tmp_path / "tiny.gguf", model, "llama", kind)

    return write


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_holds_what_our_loader_reads(gguf, tied):
    source, said = gguf(tied=tied), []
    folder = hf_folder(source, said.append)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs, ours = model.state_dict(), dict(iter_tensors(source))
    if tied:
        assert torch.equal(theirs.pop("lm_head.weight"), ours["model.embed_tokens.weight"])
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert model.config.eos_token_id == 2 and model.config.num_key_value_heads == 2
    assert hf_folder(source, said.append) == folder and len(said) == 1, "it is made once"
    assert list(folder.parent.iterdir()) == [folder], "nothing half made is left"
    assert hf_folder(folder, said.append) == folder, "a folder is taken as it is"


def test_bytes_that_a_token_reads(gguf):
    table = 128 * 64 // 32 * 20
    source = gguf(tied=True)
    assert gguf_kind(source) == "q4_1"
    layer = 64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 96
    whole = 2 * layer // 32 * 20 + table + 4 * 64 * 5
    assert gguf_bytes(source, tied=True) == whole
    # An embedding that is not the head costs a row; the head beside it counts.
    assert gguf_bytes(gguf(tied=False), tied=False) == whole


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_another_type_is_made_once_by_the_quantizer(gguf, tmp_path):
    source = gguf()
    python = script(tmp_path / "python", f'echo "$4" >> {tmp_path}/asked; cp "$2" "$3"')
    said = []
    made = gguf_as(source, "q8_0", python, said.append)
    assert made == gguf_as(source, "q8_0", python, said.append) and made.parent == made_folder(source)
    assert (tmp_path / "asked").read_text().split() == ["q8_0"] and len(said) == 1
    assert gguf_as(source, "q4_1", python, said.append) == source, "its own type is its own file"


def test_a_quantizer_that_fails_is_told_and_leaves_nothing(gguf, tmp_path):
    source = gguf()
    python = script(tmp_path / "python", 'touch "$3"; echo "bad magic" >&2; exit 1')
    with pytest.raises(WorkbenchError, match=r"llama.cpp cannot write tiny.gguf as f16: bad magic"):
        gguf_as(source, "f16", python, print)
    assert os.listdir(made_folder(source)) == []
