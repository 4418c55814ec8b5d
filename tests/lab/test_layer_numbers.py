"""Inputs and weights of products: those that transformers' own modules see, and as they lie in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm, tokens
from workbench.errors import UsageError
from workbench.lab import changed_inputs, layer_inputs, layer_weight, moved_by

TEXT = [5, 17, 80, 3, 99, 140, 7]
READ_BY = {"qkv": "self_attn.k_proj", "o": "self_attn.o_proj", "gate_up": "mlp.up_proj", "down": "mlp.down_proj"}
STACKED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


@pytest.fixture(scope="module", params=["llama-linear", "qwen2"])
def biased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose products have biases."""
    path: Path = tmp_path_factory.mktemp("biased")
    make_tiny(request.param, path)
    return path


def test_inputs_are_those_that_transformers_modules_are_given(biased: Path) -> None:
    model, seen = AutoModelForCausalLM.from_pretrained(biased).float().eval(), {}

    def listen(place: tuple[int, str]) -> Any:
        return lambda module, arguments: seen.__setitem__(place, arguments[0][0])

    for number, layer in enumerate(model.model.layers):
        for product, name in READ_BY.items():
            layer.get_submodule(name).register_forward_pre_hook(listen((number, product)))
    with torch.no_grad():
        model(torch.tensor([TEXT]))
    found = layer_inputs(open_llm(biased, dtype="float32"), TEXT)
    assert set(found) == set(seen) and len(found) == 3 * 4
    for place, x in seen.items():
        torch.testing.assert_close(found[place], x, rtol=1e-4, atol=1e-4, msg=str(place))


def test_weights_are_the_files_own_without_their_bias(biased: Path) -> None:
    stored, llm = load_file(biased / "model.safetensors"), open_llm(biased, dtype="float32")
    for product, names in STACKED.items():
        wanted = torch.cat([stored[f"model.layers.1.{name}.weight"].float() for name in names])
        assert torch.equal(layer_weight(llm, 1, product), wanted), product


def test_weights_of_few_bits_are_as_the_engine_multiplies_with_them(folder: Path) -> None:
    exact, kept = (layer_weight(open_llm(folder, quantization=name), 0, "down") for name in ("none", "w8a8-int8"))
    scale = exact.abs().amax(1, keepdim=True) / 127
    assert (exact - kept).abs().max() > 0 and bool(((exact - kept).abs() <= 0.51 * scale).all())


def test_what_is_changed_changes_the_predictions_and_comes_back(folder: Path) -> None:
    llm = open_llm(folder)
    before, place = tokens(llm), (1, "down")
    exact = llm.runner.logits(TEXT)
    assert moved_by(llm, TEXT, place, lambda x: x.clone()) < 1e-9
    assert moved_by(llm, TEXT, place, lambda x: 0 * x) > 1e-3
    with changed_inputs(llm, place, lambda x: 2 * x):
        assert not torch.allclose(llm.runner.logits(TEXT), exact)
    with pytest.raises(ZeroDivisionError), changed_inputs(llm, place, lambda x: x / (1 // 0)):
        llm.runner.logits(TEXT)
    assert torch.equal(llm.runner.logits(TEXT), exact) and tokens(llm) == before


def test_a_place_that_is_not_there_is_refused(folder: Path) -> None:
    llm = open_llm(folder)
    for place in ((3, "down"), (0, "up")):
        with pytest.raises(UsageError, match=r"layers 0 to 2 have down, gate_up, o, qkv"):
            layer_weight(llm, *place)
    with pytest.raises(UsageError, match="no product 'v'"), changed_inputs(llm, (0, "v"), lambda x: x):
        pass
