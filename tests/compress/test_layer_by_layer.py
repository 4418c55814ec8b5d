"""Texts through a model layer by layer, against transformers: hidden states, inputs of every matrix, masks."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.model.tiny import make_tiny
from workbench.compress.layer_by_layer import READERS, LayerByLayer
from workbench.errors import UsageError
from workbench.model.weights import load_weights, read_model_config

TEXTS = [[3 + (7 * i * i + s) % 200 for i in range(length)] for s, length in enumerate((40, 17, 1))]


@pytest.fixture(scope="module", params=["smollm2", "qwen2-window", "qwen3"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(request.param, path, seed=4)
    return path


def opened(folder):
    config = read_model_config(folder)
    return config, load_weights(config, folder, "auto", torch.float32)


def of_layer(weights, index):
    return {name: t for name, t in weights.items() if name.startswith(f"model.layers.{index}.")}


@torch.inference_mode()
def watched(folder):
    """What transformers feeds each matrix, text by text, and the hidden states between layers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs: dict[str, list[torch.Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, x, name=name: inputs.setdefault(name, []).append(x[0][0]))
    hidden = [model(torch.tensor([text]), output_hidden_states=True).hidden_states for text in TEXTS]
    return inputs, hidden


def test_inputs_and_hidden_states_are_those_of_transformers(folder):
    config, weights = opened(folder)
    inputs, hidden = watched(folder)
    run = LayerByLayer(config, weights, TEXTS)
    for index in range(config.num_layers):
        stats = run.observe(index, of_layer(weights, index))
        for reader, names in READERS.items():
            for name in names:
                x = torch.cat(inputs[f"model.layers.{index}.{name}"]).double()
                assert stats[reader].tokens == len(x) == 58
                wanted = x.T @ x
                assert torch.allclose(stats[reader].gram.double(), wanted, atol=1e-3 * float(wanted.abs().max()))
                assert torch.allclose(stats[reader].mean_magnitude, x.abs().mean(0).float(), rtol=1e-3, atol=1e-5)
        run.advance(index, of_layer(weights, index))
        if index + 1 < config.num_layers:  # transformers normalizes the last one
            for ours, theirs in zip(run.hidden, hidden, strict=True):
                assert torch.allclose(ours, theirs[index + 1][0], atol=2e-4 * float(theirs[index + 1].abs().max()))


def test_a_mask_says_which_tokens_count(folder):
    config, weights = opened(folder)
    inputs, _ = watched(folder)
    masks = [[(i + s) % 3 != 0 for i in range(len(text))] for s, text in enumerate(TEXTS)]
    stats = LayerByLayer(config, weights, TEXTS, masks).observe(0, of_layer(weights, 0))
    kept = torch.tensor([value for mask in masks for value in mask])
    for reader, names in READERS.items():
        x = torch.cat(inputs[f"model.layers.0.{names[0]}"])[kept].double()
        assert stats[reader].tokens == len(x)
        assert torch.allclose(stats[reader].mean_magnitude, x.abs().mean(0).float(), rtol=1e-3, atol=1e-5)


def test_observing_changes_nothing(folder):
    config, weights = opened(folder)
    run = LayerByLayer(config, weights, TEXTS)
    before = [h.clone() for h in run.hidden]
    first, again = (run.observe(0, of_layer(weights, 0)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(run.hidden, before, strict=True))
    assert all(torch.equal(first[r].gram, again[r].gram) for r in READERS)


def test_refusals(folder):
    config, weights = opened(folder)
    with pytest.raises(UsageError, match="text 1 has 0 tokens"):
        LayerByLayer(config, weights, [[1], []])
    with pytest.raises(UsageError, match=f"text 0 has 513 tokens: give 1 to {config.max_position_embeddings}"):
        LayerByLayer(config, weights, [[1] * 513])
    with pytest.raises(UsageError, match="2 mask values for 3 tokens"):
        LayerByLayer(config, weights, [[1, 2, 3]], [[True, True]])
