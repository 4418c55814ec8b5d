"""Layers quantized one after the other: AWQ's scales leave the model as it was, layers see what stands before them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tests.model.tiny import make_tiny
from workbench.compress.calibrate import ALGORITHMS, Recipe, quantize_layer, quantize_layers
from workbench.compress.layer_by_layer import LayerByLayer
from workbench.errors import UsageError
from workbench.model.weights import load_weights, read_model_config
from workbench.quant.args import QuantArgs
from workbench.quant.stats import InputStats

TEXTS = [[3 + (7 * i * i + s) % 200 for i in range(length)] for s, length in enumerate((60, 41, 50))]
W4 = QuantArgs(4, group_size=8, symmetric=False, scale="fp16")
W8 = QuantArgs(8, group_size=8, symmetric=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    found = {}

    def model(family):
        if family not in found:
            path = tmp_path_factory.mktemp(family)
            make_tiny(family, path, seed=4)
            config = read_model_config(path)
            found[family] = config, load_weights(config, path, "auto", torch.float32)
        return found[family]

    return model


def hidden_of(config, weights, layers):
    run = LayerByLayer(config, weights, TEXTS)
    for index in range(config.num_layers):
        run.advance(index, layers[index])
    return torch.cat(run.hidden)


def as_they_are(config, weights):
    return [
        {name: t for name, t in weights.items() if name.startswith(f"model.layers.{i}.")}
        for i in range(config.num_layers)
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("family", ["smollm2", "llama2", "llama-linear", "qwen3"])
def test_every_layer_comes_back_whole_and_computes_nearly_the_same(models, family, algorithm):
    """With 8 bits, so that a scale gone astray would show: biases, norms, value heads with and without sharing."""
    config, weights = models(family)
    before = {name: t.clone() for name, t in weights.items()}
    results = list(quantize_layers(config, weights, TEXTS, Recipe(W8, algorithm)))
    layers = [result.tensors() for result in results]
    exact = as_they_are(config, weights)
    assert [sorted(layer) for layer in layers] == [sorted(layer) for layer in exact]
    wanted, found = hidden_of(config, weights, exact), hidden_of(config, weights, layers)
    assert float((found - wanted).norm() / wanted.norm()) < 0.03
    assert all(torch.equal(t, before[name]) for name, t in weights.items()), "the model itself stays as it is"
    reports = [told for result in results for told in result.reports]
    assert len(reports) == 7 * config.num_layers and all(told.fallbacks == () for told in reports)
    if algorithm == "awq":
        norm = "model.layers.0.input_layernorm.weight"
        assert not torch.equal(layers[0][norm], weights[norm]), "some of the scales are not 1"


def test_calibrated_algorithms_keep_hidden_states_closer_than_rounding_to_nearest(models):
    config, weights = models("smollm2")
    wanted = hidden_of(config, weights, as_they_are(config, weights))
    off = {}
    for algorithm in ALGORITHMS:
        layers = [r.tensors() for r in quantize_layers(config, weights, TEXTS, Recipe(W4, algorithm))]
        off[algorithm] = float((hidden_of(config, weights, layers) - wanted).norm())
    assert off["gptq"] < off["rtn"] and off["awq"] < off["rtn"]


def test_a_layer_is_calibrated_for_what_the_quantized_layers_before_give_it(models):
    config, weights = models("smollm2")
    first, second = list(quantize_layers(config, weights, TEXTS, Recipe(W4, "gptq")))[:2]
    run = LayerByLayer(config, weights, TEXTS)
    run.advance(0, first.tensors())
    tensors = as_they_are(config, weights)[1]
    again = quantize_layer(config, 1, tensors, run.observe(1, tensors), Recipe(W4, "gptq"))
    assert all(torch.equal(again.weights[n].q, second.weights[n].q) for n in again.weights)


@pytest.mark.parametrize("algorithm", ["gptq", "awq"])
def test_a_run_goes_on_where_it_was_stopped(models, algorithm):
    config, weights = models("smollm2")
    recipe = Recipe(W4, algorithm)
    whole = list(quantize_layers(config, weights, TEXTS, recipe))
    kept = {r.index: r for r in whole[:2]}
    rest = list(quantize_layers(config, weights, TEXTS, recipe, finished=kept.get))
    assert rest[0] is whole[0] and rest[1] is whole[1]
    for name, weight in whole[2].weights.items():
        assert torch.equal(rest[2].weights[name].q, weight.q)
        assert torch.equal(rest[2].weights[name].params.scale, weight.params.scale)


def test_statistics_do_not_outlive_their_layer(models, monkeypatch):
    config, weights = models("smollm2")
    alive: weakref.WeakSet[InputStats] = weakref.WeakSet()
    made = InputStats.__init__
    monkeypatch.setattr(InputStats, "__init__", lambda self, channels: (alive.add(self), made(self, channels))[1])
    for result in quantize_layers(config, weights, TEXTS, Recipe(W4, "gptq")):
        gc.collect()
        assert len(alive) == 0
        assert not any(w.q.requires_grad for w in result.weights.values())


def test_rounding_to_nearest_needs_no_texts(models):
    config, weights = models("smollm2")
    results = list(quantize_layers(config, weights, [], Recipe(W4)))
    assert all(told.output_error is None for r in results for told in r.reports)
    with pytest.raises(UsageError, match="'awq' needs calibration texts"):
        next(quantize_layers(config, weights, [], Recipe(W4, "awq")))


def test_refused_before_any_work(models):
    config, weights = models("smollm2")
    with pytest.raises(
        UsageError, match=r"model\.layers\.0\.self_attn\.q_proj.*groups of 16 do not divide its 72 inputs"
    ):
        next(quantize_layers(config, weights, TEXTS, Recipe(QuantArgs(4, group_size=16), "gptq")))
    with pytest.raises(UsageError, match="rtn, gptq, awq"):
        Recipe(W4, "smoothquant")
    with pytest.raises(UsageError, match="none, static, group"):
        Recipe(W4, "gptq", order="yes")
