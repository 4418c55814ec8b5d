"""Models whose numbers no format of fewer bits keeps are refused by the name of what is wrong, before any work."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from tests.model.tiny import make_tiny
from tests.text.tokenizers_made import unnamed_cuts
from workbench.compress import quantize as module
from workbench.compress.calibrate import ALGORITHMS, Recipe, quantize_layers
from workbench.compress.quantize import quantize_model
from workbench.errors import UsageError, WorkbenchError
from workbench.model.weights import load_weights, read_model_config
from workbench.quant.args import QuantArgs

DOWN, NORM = "model.layers.1.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2}  # fmt: skip
TEXTS = [[3 + (7 * i * i) % 200 for i in range(40)]]


@pytest.fixture
def spoilt(tmp_path):
    """A model with one number of a tensor set."""

    def make(name: str, number: float):
        path = tmp_path / "floats"
        make_tiny("smollm2", path, seed=4, **SIZES)
        tensors = load_file(path / "model.safetensors")
        tensors[name] = tensors[name].float()
        tensors[name].view(-1)[3] = number
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    return make


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", [DOWN, NORM])
def test_a_tensor_that_is_not_finite_is_named(spoilt, tmp_path, algorithm, number, name):
    path = spoilt(name, number)
    config = read_model_config(path)
    weights = load_weights(config, path, "auto", torch.float32)
    recipe = Recipe(QuantArgs(4, group_size=32, symmetric=False, scale="fp16"), algorithm)
    with pytest.raises(WorkbenchError, match=f"{name} holds infinities or NaN"):
        next(iter(quantize_layers(config, weights, TEXTS, recipe)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_matrix_whose_scale_float16_does_not_hold_is_named(spoilt, algorithm):
    path = spoilt(DOWN, 3e6)
    config = read_model_config(path)
    weights = load_weights(config, path, "auto", torch.float32)
    recipe = Recipe(QuantArgs(4, group_size=32, symmetric=False, scale="fp16"), algorithm)
    with pytest.raises(WorkbenchError, match=r"layers\.1\.mlp\.down_proj: a scale of .* is beyond"):
        list(quantize_layers(config, weights, TEXTS, recipe))


@pytest.mark.parametrize("name", [NORM, "model.embed_tokens.weight"])
def test_what_stays_in_16_bits_must_fit_before_any_work(spoilt, tmp_path, name, monkeypatch):
    monkeypatch.setattr(module, "quantize_layers", lambda *_, **__: pytest.fail("layers were quantized"))
    with pytest.raises(UsageError, match=f"{name} has numbers beyond float16's 65504"):
        quantize_model(str(spoilt(name, 70_000.0)), tmp_path / "out", group_size=32)
    assert not (tmp_path / "out").exists()


def test_a_gguf_file_keeps_them_in_32(spoilt, tmp_path):
    quantize_model(str(spoilt(NORM, 70_000.0)), tmp_path / "out", format="gguf")


def test_a_tokenizer_without_words_in_gguf_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    path = tmp_path / "floats"
    make_tiny("smollm2", path, seed=4, **SIZES)
    PreTrainedTokenizerFast(tokenizer_object=unnamed_cuts()).save_pretrained(path)
    monkeypatch.setattr(module, "load_weights", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(UsageError, match="no name for here"):
        quantize_model(str(path), tmp_path / "out", format="gguf")
    assert not (tmp_path / "out").exists()


def test_a_configuration_s_older_name_for_the_dtype_does_not_stay(spoilt, tmp_path):
    path = spoilt(NORM, 1.0)
    hf = json.loads((path / "config.json").read_text())
    hf.pop("dtype", None)
    (path / "config.json").write_text(json.dumps({**hf, "torch_dtype": "float32"}))
    quantize_model(str(path), tmp_path / "out", group_size=32)
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told["dtype"] == "float16" and "torch_dtype" not in told
