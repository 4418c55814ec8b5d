"""Weights: what transformers saved comes back to the bit; what is broken is named; dummies have the right shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.model.tiny import FAMILIES, make_tiny
from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names
from workbench.model.weights import (
    dummy_weights,
    expected_tensors,
    load_safetensors,
    load_weights,
    pick_format,
    read_model_config,
)


def edit(folder: Path, change: Any) -> ModelConfig:
    """Applies ``change`` to the tensors of a saved model and returns the model's configuration."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return read_model_config(folder)


def load(folder: Path, config: ModelConfig | None = None) -> dict[str, torch.Tensor]:
    return load_weights(config or read_model_config(folder), folder, "auto", torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_every_tensor_comes_back(family: str, shard: str, tmp_path: Path) -> None:
    model = make_tiny(family, tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 2) == (shard == "60KB")
    loaded = load(tmp_path)
    theirs = dict(model.named_parameters())
    assert set(loaded) == set(theirs)
    assert all(torch.equal(loaded[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("name", shipped_names())
def test_expected_tensors_are_those_of_transformers(name: str) -> None:
    raw = shipped_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
    config = ModelConfig.from_dict(raw)
    expected = expected_tensors(config)
    assert expected == {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert ("lm_head.weight" in expected) == (not config.tie_word_embeddings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_half_precision_is_read_and_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_tiny("qwen2", tmp_path, dtype=dtype)
    stored = dict(load_safetensors(tmp_path))
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    assert read_model_config(tmp_path).dtype == str(dtype).removeprefix("torch.")
    for name, tensor in load(tmp_path).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].float())


def test_a_missing_shard_is_named_with_and_without_an_index(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path, max_shard_size="60KB")
    config = read_model_config(tmp_path)
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(WorkbenchError, match=gone.name):
        load(tmp_path, config)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(WorkbenchError, match=gone.name):
        load(tmp_path, config)


def test_shards_without_an_index_load(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path, max_shard_size="60KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    assert set(load(tmp_path)) == set(expected_tensors(read_model_config(tmp_path)))


def test_an_index_that_lies_is_named(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = content["weight_map"]["model.embed_tokens.weight"]
    content["weight_map"]["model.norm.weight"] = first
    index.write_text(json.dumps(content))
    with pytest.raises(WorkbenchError, match=rf"{first} does not hold 'model.norm.weight'"):
        load(tmp_path)
    index.write_text("{")
    with pytest.raises(WorkbenchError, match="index"):
        load(tmp_path)


def test_all_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    make_tiny("qwen2", tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_proj.bias"]
        tensors["model.layers.0.mlp.gate_proj.bias"] = torch.zeros(112)
        tensors["model.norm.weight"] = torch.zeros(63)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].t().contiguous()

    config = edit(tmp_path, change)
    with pytest.raises(WorkbenchError) as caught:
        load(tmp_path, config)
    message = str(caught.value)
    assert "1 missing: model.layers.1.self_attn.k_proj.bias" in message
    assert "1 unexpected: model.layers.0.mlp.gate_proj.bias" in message
    assert "model.norm.weight is [63], not [64]" in message
    assert "lm_head.weight is [64, 211], not [211, 64]" in message


def test_long_lists_are_cut(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path)
    config = edit(tmp_path, lambda tensors: [tensors.pop(name) for name in list(tensors) if "mlp" in name])
    with pytest.raises(WorkbenchError, match=r"9 missing: .* and 3 more"):
        load(tmp_path, config)


def test_the_head_must_be_there_if_and_only_if_it_is_not_tied(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path / "untied")
    config = edit(tmp_path / "untied", lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(WorkbenchError, match=r"1 missing: lm_head\.weight"):
        load(tmp_path / "untied", config)

    make_tiny("smollm2", tmp_path / "tied")
    embedding = "model.embed_tokens.weight"
    edit(tmp_path / "tied", lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert "lm_head.weight" not in load(tmp_path / "tied")
    edit(tmp_path / "tied", lambda tensors: tensors.update({"lm_head.weight": tensors[embedding] + 1}))
    with pytest.raises(WorkbenchError, match="stores another lm_head"):
        load(tmp_path / "tied")


def test_stored_rotary_frequencies_are_passed_over(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    config = edit(tmp_path, lambda tensors: tensors.update(extra))
    assert set(load(tmp_path, config)) == set(expected_tensors(config))


def test_integer_weights_and_damaged_files_are_refused(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path)
    config = edit(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)}))
    with pytest.raises(UsageError, match=r"model\.norm\.weight is stored as int32"):
        load(tmp_path, config)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WorkbenchError, match=r"model\.safetensors is damaged"):
        load(tmp_path, config)


def test_a_model_that_cannot_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    config = ModelConfig.from_dict({**shipped_config("llama-2-7b"), "model_type": "gemma2"})
    with pytest.raises(UsageError, match="'gemma2'"):
        load_weights(config, tmp_path, "auto", torch.float32)


def test_dummy_weights_are_sane_and_reproducible() -> None:
    small = {"hidden_size": 448, "intermediate_size": 1000, "num_hidden_layers": 2, "vocab_size": 2000}
    config = ModelConfig.from_dict({**shipped_config("qwen2.5-0.5b"), **small})
    expected = expected_tensors(config)
    first = dict(dummy_weights(config, seed=3))
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == expected
    for name, tensor in first.items():
        if name.endswith("norm.weight"):
            assert bool((tensor == 1).all())
        elif tensor.dim() == 2:
            assert tensor.std().item() == pytest.approx(tensor.shape[1] ** -0.5, rel=0.02)
            assert abs(tensor.mean().item()) < 0.01 * tensor.shape[1] ** -0.5 + 1e-4
        else:
            assert 0 < tensor.std().item() < 0.05
    again = load_weights(config, None, "dummy", torch.float32, seed=3)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = dict(dummy_weights(config, seed=4))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first["model.layers.1.self_attn.q_proj.weight"])
    half = dict(dummy_weights(config, seed=3, dtype=torch.bfloat16))
    assert all(torch.equal(half[name], first[name].bfloat16()) for name in first)


def test_dummy_tensors_come_one_at_a_time() -> None:
    # The first tensor of a 7B model must not wait for the other 290.
    stream = dummy_weights(
        ModelConfig.from_dict({**shipped_config("llama-2-7b"), "vocab_size": 512}), 0, torch.bfloat16
    )
    name, tensor = next(stream)
    assert name == "model.embed_tokens.weight" and tensor.shape == (512, 4096) and tensor.dtype == torch.bfloat16


def test_the_format_is_picked_by_what_lies_there(tmp_path: Path) -> None:
    make_tiny("llama2", tmp_path / "folder")
    file = tmp_path / "model.GGUF"
    file.touch()
    assert pick_format(tmp_path / "folder", "auto") == pick_format(tmp_path / "folder", "safetensors") == "safetensors"
    assert pick_format(file, "auto") == pick_format(file, "gguf") == "gguf"
    assert pick_format("nowhere", "dummy") == "dummy"
    for source, load_format, named in (
        (tmp_path / "folder", "gguf", "needs a .gguf file"),
        (file, "safetensors", "needs a folder"),
        (tmp_path, "auto", "is not that"),
        (tmp_path / "absent", "auto", "does not exist"),
        (file, "onnx", "'onnx' is not known"),
    ):
        with pytest.raises(UsageError, match=named):
            pick_format(source, load_format)


def test_configurations_are_found_by_folder_file_and_name(tmp_path: Path) -> None:
    make_tiny("qwen3", tmp_path)
    config = read_model_config(tmp_path)
    assert config == read_model_config(tmp_path / "config.json") == read_model_config(tmp_path, "dummy")
    assert read_model_config("qwen3-8b", "dummy").num_parameters == 8_190_735_360
    with pytest.raises(UsageError, match="qwen3-8b is no folder"):
        read_model_config("qwen3-8b")
    with pytest.raises(UsageError, match=r"qwen4-8b .*qwen3-8b"):
        read_model_config("qwen4-8b", "dummy")
    with pytest.raises(UsageError, match="needs a model folder"):
        load_weights(config, None, "auto", torch.float32)


def test_a_gguf_file_loads_under_the_same_names(tmp_path: Path) -> None:
    """A tiny Qwen2 (whose rows GGUF does not permute), written with the `gguf` package."""
    model = make_tiny("qwen2", tmp_path)
    config = model.config
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, tensor in model.named_parameters():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_model_config(file)
    assert expected_tensors(read) == expected_tensors(read_model_config(tmp_path))
    loaded = load_weights(read, file, "auto", torch.float32)
    assert all(torch.equal(loaded[name], parameter) for name, parameter in model.named_parameters())
