"""Orders that must hold on the default model's own layers, for inputs that a text gives them.

Its weights are Q4_1 blocks made floats again, so errors are against that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.quant.measured import snr_db
from workbench.compress.calibrate import Recipe, quantize_layers
from workbench.compress.layer_by_layer import READERS, LayerByLayer
from workbench.errors import UsageError
from workbench.model import store
from workbench.model.weights import load_weights, read_model_config
from workbench.quant.algorithms import awq, gptq, rtn
from workbench.quant.args import QuantArgs
from workbench.quant.core import fake_quant
from workbench.quant.presets import PRESETS, preset
from workbench.text.default_text import DEFAULT_TEXT
from workbench.text.tokenizer import Tokenizer

LAYER = 1


@pytest.fixture(scope="module")
def weights():
    source = store.locate("smollm2-135m")
    return load_weights(read_model_config(source), source, "auto", torch.float32)


@pytest.fixture(scope="module")
def layer(weights):
    """Of one layer: weights by the names of `READERS`, and statistics of their inputs."""
    source = store.locate("smollm2-135m")
    ids = Tokenizer.from_source(source).encode(DEFAULT_TEXT)
    run = LayerByLayer(read_model_config(source), weights, [ids[:192], ids[192:384]])
    parts = [{n: t for n, t in weights.items() if n.startswith(f"model.layers.{i}.")} for i in range(LAYER + 1)]
    for index in range(LAYER):
        run.advance(index, parts[index])
    stats = run.observe(LAYER, parts[LAYER])
    return {
        reader: ({n: parts[LAYER][f"model.layers.{LAYER}.{n}.weight"] for n in names}, stats[reader])
        for reader, names in READERS.items()
    }


def error(layer, reader, made):
    matrices, stats = layer[reader]
    whole = stats.error(list(matrices.values()))
    return stats.error([made[name] - weight for name, weight in matrices.items()]) / whole


@pytest.mark.parametrize("bits", [4, 3])
def test_gptq_and_awq_lose_less_than_rounding_to_nearest(layer, bits):
    args = replace(preset("w4a16", 64).weights, bits=bits)
    for reader, (matrices, stats) in layer.items():
        plain = error(layer, reader, {n: fake_quant(w, args) for n, w in matrices.items()})
        for order in ("none", "static", "group"):
            made = {n: gptq(w, stats, args, order, name=n) for n, w in matrices.items()}
            assert all(told.fallbacks == () and told.damping == 0.01 for _, told in made.values())
            assert error(layer, reader, {n: w.dequantize() for n, (w, _) in made.items()}) < 0.5 * plain, (
                reader,
                order,
            )
        scaled = awq(matrices, stats, args)
        made = {n: w.dequantize() / scaled.channel_scale for n, w in scaled.weights.items()}
        assert error(layer, reader, made) < 0.95 * plain, reader


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_smaller_groups_lose_less(layer, algorithm):
    for reader in ("qkv", "o"):
        matrices, stats = layer[reader]
        found = []
        for group in (-1, 64, 32):
            args = preset("w4a16", group).weights
            quantized = {n: rtn(w, args) if algorithm == "rtn" else gptq(w, stats, args) for n, w in matrices.items()}
            found.append(error(layer, reader, {n: made.dequantize() for n, (made, _) in quantized.items()}))
        assert found[0] > found[1] > found[2], (reader, found)


ANCHORS = {  # quantization.md's figures for a typical layer, in dB; a range where it gives one
    "INT4 asym g32": (preset("w4a16", 32).weights, 21.0, 21.7),
    "INT4 asym g64": (preset("w4a16", 64).weights, 20.5, 20.5),
    "INT4 asym channel": (preset("w4a16", -1).weights, 16.5, 16.5),
    "INT4 sym /7 g64": (QuantArgs(4, group_size=64, symmetric_range="narrow"), 18.8, 18.8),
    "INT4 sym /7.5 g64": (QuantArgs(4, group_size=64), 19.2, 19.2),
    "INT8 channel": (PRESETS["w8a16"].weights, 40.0, 41.5),
    "E4M3 channel": (PRESETS["fp8"].weights, 31.6, 31.6),
    "MXFP4": (PRESETS["mxfp4"].weights, 18.6, 18.6),
    "NVFP4": (PRESETS["nvfp4"].weights, 20.5, 20.5),
}


@pytest.mark.parametrize("name", ANCHORS)
def test_anchors_of_a_typical_layer(weights, name):
    """On the matrix that has all of them at once; rows differ most in the range that a whole row must share."""
    args, least, most = ANCHORS[name]
    weight = weights["model.layers.0.mlp.down_proj.weight"]
    assert least - 0.5 <= snr_db(weight, fake_quant(weight, args)) <= most + 0.5


def test_groups_of_128_are_refused_by_the_layers_name(weights):
    config = read_model_config(store.locate("smollm2-135m"))
    with pytest.raises(UsageError, match=r"layers\.0\.self_attn\.q_proj.*and 177 more: groups of 128 .* 576 inputs"):
        next(quantize_layers(config, weights, [], Recipe(preset("w4a16", 128).weights)))
