"""Whole models out of GGUF files: names, rows, configuration; transformers is the witness."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.model.gguf_files import write_gguf
from workbench.errors import UsageError, WorkbenchError
from workbench.gguf_file import GGUFFile
from workbench.model import store
from workbench.model.config import ModelConfig
from workbench.model.gguf import iter_tensors, read_config
from workbench.model.gguf.mapping import hf_name, read_tensor, unpermute

SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 16384,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
# Every family: GGUF architecture, transformers config.
FAMILIES = {
    "llama": ("llama", AutoConfig.for_model("llama", **SHAPE, tie_word_embeddings=True)),
    "llama-biased": ("llama", AutoConfig.for_model("llama", **SHAPE, attention_bias=True)),
    "qwen2": ("qwen2", AutoConfig.for_model("qwen2", **SHAPE)),
    "qwen3": ("qwen3", AutoConfig.for_model("qwen3", **SHAPE, head_dim=32, tie_word_embeddings=True)),
}


def make(config: LlamaConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # biases and norms are born 0 and 1, which would hide a mix-up
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_comes_back_under_its_own_name(tmp_path: Path, family: str):
    arch, config = FAMILIES[family]
    model = make(config)
    found = dict(iter_tensors(write_gguf(tmp_path / "m.gguf", model, arch)))
    expected = dict(model.state_dict())
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_rebuilds_the_model_in_transformers(tmp_path: Path, family: str):
    """Same logits from transformers, built from nothing but what we read from the file."""
    arch, config = FAMILIES[family]
    model = make(config)
    path = write_gguf(tmp_path / "m.gguf", model, arch)
    read = read_config(path)
    rebuilt = AutoModelForCausalLM.from_config(AutoConfig.for_model(**read)).eval()
    missing, unexpected = rebuilt.load_state_dict(dict(iter_tensors(path)), strict=False)
    assert not unexpected and missing in ([], ["lm_head.weight"])
    rebuilt.tie_weights()
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    ours = ModelConfig.from_dict(read)
    assert ours.eos_token_ids == (2,) and ours.tie_word_embeddings == config.tie_word_embeddings
    assert ours.num_parameters == sum(p.numel() for p in model.parameters())


def test_transformers_reads_the_same_weights_from_the_same_file(tmp_path: Path):
    arch, config = FAMILIES["llama"]
    path = write_gguf(tmp_path / "m.gguf", make(config), arch, "Q5_0")
    theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file=path.name, dtype=torch.float32).state_dict()
    for name, tensor in iter_tensors(path):
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0, msg=name)


@pytest.mark.slow
def test_transformers_reads_the_same_weights_of_the_default_model():
    path = store.locate("smollm2-135m")
    theirs = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).state_dict()
    found = 0
    for name, tensor in iter_tensors(path):
        assert torch.equal(tensor, theirs[name]), name
        found += 1
    assert found == len(theirs) - 1 == 272  # the tied head is not in the file


def test_the_default_models_config_is_the_shipped_one():
    """The file's metadata and the config.json published with the model describe one model."""
    from workbench.model.configs import shipped_config

    read = ModelConfig.from_dict(read_config(store.locate("smollm2-135m")))
    shipped = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    for field in ModelConfig.__dataclass_fields__:
        if field not in ("dtype", "architecture"):
            assert getattr(read, field) == getattr(shipped, field), field
    assert read.num_parameters == 134_515_008


@pytest.mark.parametrize(("part", "heads"), [("attn_q", 9), ("attn_k", 3)])
def test_rotating_halves_after_unpermuting_is_rotating_pairs_before(part: str, heads: int):
    """The reason for the permutation, on real weights: llama.cpp's rotation of neighbours and transformers' rotation of
    halves give one and the same set of rotated values."""
    file = GGUFFile(store.locate("smollm2-135m"))
    raw = read_tensor(file, file.tensors[f"blk.7.{part}.weight"])
    x, head_dim, position = torch.randn(576, generator=torch.Generator().manual_seed(0)), 64, 17
    angles = position * 100000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angles.cos(), angles.sin()

    pairs = (raw @ x).reshape(heads, head_dim // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    by_pairs = torch.stack((first * cos - second * sin, first * sin + second * cos))

    halves = (unpermute(raw, heads) @ x).reshape(heads, 2, head_dim // 2)
    first, second = halves[:, 0], halves[:, 1]
    by_halves = torch.stack((first * cos - second * sin, first * sin + second * cos))
    torch.testing.assert_close(by_halves, by_pairs)
    # and the permutation matters: without it, or with the wrong number of heads, the values differ
    wrong = (unpermute(raw, heads * 2) @ x).reshape(heads, 2, head_dim // 2)
    assert not torch.allclose(wrong[:, 0], halves[:, 0], atol=1e-2)


def test_llama3_scaling_is_recognised_by_its_table(tmp_path: Path):
    shape = SHAPE | {"head_dim": 64, "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}}
    model = make(AutoConfig.for_model("llama", **shape))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
    plain = 500000.0 ** (-torch.arange(0, 64, 2) / 64)
    path = write_gguf(tmp_path / "m.gguf", model, "llama", rope_freqs=plain / scaled)
    assert read_config(path)["rope_scaling"] == LLAMA3
    assert len(dict(iter_tensors(path))) == len(model.state_dict())
    other = write_gguf(tmp_path / "n.gguf", model, "llama", rope_freqs=(plain / scaled).square())
    with pytest.raises(UsageError, match="does not follow the llama3 rule"):
        read_config(other)


def header(path: Path, arch: str, **values: int | float | str) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{arch}.{key.replace('__', '.')}", value)
    writer.add_tensor("token_embd.weight", torch.zeros(8, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_rope_scaling_in_the_metadata_and_sliding_windows(tmp_path: Path):
    least = {"embedding_length": 32, "feed_forward_length": 64, "block_count": 1, "attention__head_count": 4}
    least |= {"attention__layer_norm_rms_epsilon": 1e-6}
    read = read_config(header(tmp_path / "a.gguf", "llama", **least, attention__sliding_window=16))
    assert (read["model_type"], read["sliding_window"], read["head_dim"]) == ("mistral", 16, 8)
    assert read["rope_scaling"] is None and read["num_key_value_heads"] == 4 and read["rms_norm_eps"] == 1e-6
    scaled = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    read = read_config(header(tmp_path / "b.gguf", "qwen2", **least, **scaled))
    assert read["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    with pytest.raises(UsageError, match="rope scaling 'longrope'"):
        read_config(header(tmp_path / "c.gguf", "llama", **least, rope__scaling__type="longrope"))
    with pytest.raises(UsageError, match="mixture of 8 experts"):
        read_config(header(tmp_path / "d.gguf", "llama", **least, expert_count=8))
    with pytest.raises(UsageError, match="architecture 'bloom' is not supported; supported: llama, mistral, qwen2"):
        read_config(header(tmp_path / "e.gguf", "bloom", **least))
    del least["block_count"]
    with pytest.raises(WorkbenchError, match=r"lacks llama\.block_count"):
        read_config(header(tmp_path / "f.gguf", "llama", **least))


def test_unknown_tensors_are_refused_by_name():
    with pytest.raises(UsageError, match=r"'blk.0.ffn_gate_inp.weight' has no place"):
        hf_name("blk.0.ffn_gate_inp.weight")


def test_reading_the_config_needs_no_torch():
    program = "import sys; from workbench.model.gguf import read_config; read_config(sys.argv[1])"
    program += "; print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, str(store.locate("smollm2-135m"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
