"""Matrices of the default model's first layers, what they are given in two texts, and how far quantizing changes what
they give: calibrated with one text, judged by the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.compress import calibrate
from workbench.compress.layer_by_layer import READERS, LayerByLayer
from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.model import store
from workbench.model.weights import load_weights, read_model_config
from workbench.quant.algorithms import awq, gptq
from workbench.quant.args import QuantArgs
from workbench.quant.core import observed, qparams
from workbench.quant.stats import InputStats
from workbench.text.sample_texts import calibration_text, calibration_texts, evaluation_text
from workbench.text.tokenizer import tokenizer_beside

_CHARACTERS = 40
"""Of a text for each token that is taken of it: enough, and its head is quick to cut into tokens."""


class Reader(NamedTuple):
    """Matrices that read the same inputs."""

    name: str
    """A key of `READERS`."""
    divisible: bool
    """Whether what makes the inputs can take up AWQ's scales: a norm or a matrix of its own."""
    weights: dict[str, Tensor]
    """``[N, K]`` float32, by short names: ``0.q_proj``"""
    seen: InputStats
    """Of the text to calibrate with."""
    unseen: InputStats
    """Of the text to judge by."""


class Judged(NamedTuple):
    """One matrix quantized."""

    error: float
    """Squared error of its outputs by their squares, on the text it was not calibrated with."""
    power: float | None = None
    """``awq``: of the mean activation; None where weights are left as they are."""
    cut: float = 0.0
    """``awq``: share of the groups whose range was cut."""


def first_layers(tokens: int, layers: int = 2, readers: Sequence[str] = tuple(READERS)) -> list[Reader]:
    """Of the default model (WORKBENCH_MODEL, else the course's). ``tokens``: of each text; ``readers``: keys of
    `READERS`. The inputs are those that the unchanged layers before give."""
    if unknown := [name for name in readers if name not in READERS]:
        raise UsageError(f"readers={unknown}: choose from {', '.join(READERS)}")
    source = store.locate(EngineConfig().model)
    config = read_model_config(source)
    if not 1 <= layers <= config.num_layers:
        raise UsageError(f"layers={layers}: the model has {config.num_layers}, and at least 1 is needed")
    loaded = load_weights(config, source, "auto", torch.float32)
    weights = {name: t for name, t in loaded.items() if isinstance(t, Tensor) and _needed(name, layers)}
    del loaded
    tokenizer = tokenizer_beside(source)
    if tokenizer is None:
        raise UsageError(f"{EngineConfig().model} has no tokenizer, which calibration texts need")
    texts = (text[: tokens * _CHARACTERS] for text in (calibration_text(), evaluation_text()))
    runs = [LayerByLayer(config, weights, calibration_texts(tokenizer, text, tokens)) for text in texts]
    found = []
    for index in range(layers):
        own = {name: t for name, t in weights.items() if name.startswith(f"model.layers.{index}.")}
        seen, unseen = (run.observe(index, own) for run in runs)
        for reader in readers:
            divisible = reader != "o" or config.num_heads == config.num_kv_heads
            matrices = {}
            for name in READERS[reader]:
                matrices[f"{index}.{name.split('.')[-1]}"] = own[f"model.layers.{index}.{name}.weight"]
            found.append(Reader(reader, divisible, matrices, seen[reader], unseen[reader]))
        if index + 1 < layers:
            for run in runs:
                run.advance(index, own)
    return found


def judged(reader: Reader, algorithm: str, args: QuantArgs) -> dict[str, Judged]:
    """Each of a reader's matrices quantized by ``rtn``, ``gptq`` or ``awq``, as `workbench quantize` calls them."""
    if algorithm not in calibrate.ALGORITHMS:
        raise UsageError(f"algorithm {algorithm!r} is not known; choose from {', '.join(calibrate.ALGORITHMS)}")
    with torch.inference_mode():
        if algorithm == "awq":
            return _judged_awq(reader, args)
        result = {}
        for name, weight in reader.weights.items():
            if algorithm == "gptq":
                made, _ = gptq(weight, reader.seen, args, "static", name=name)
            else:
                # By the module that calls it, where an exercise may have put another one.
                made, _ = calibrate.rtn(weight, args, reader.seen, name)  # type: ignore[attr-defined]
            result[name] = Judged(_error(reader, weight, made.dequantize()))
        return result


def layer_errors(readers: Sequence[Reader], algorithm: str, args: QuantArgs) -> dict[str, Judged]:
    """`judged` of several readers, by the matrices' names."""
    return {name: told for reader in readers for name, told in judged(reader, algorithm, args).items()}


def _judged_awq(reader: Reader, args: QuantArgs) -> dict[str, Judged]:
    clip = [name for name in reader.weights if not name.endswith(("q_proj", "k_proj"))]
    found = awq(reader.weights, reader.seen, args, scale=reader.divisible, clip=clip)
    result = {}
    for name, weight in reader.weights.items():
        made, scaled = found.weights[name], weight * found.channel_scale
        whole = _reach(scaled, args, name)
        cut = float((made.params.scale < 0.99 * whole).float().mean())
        result[name] = Judged(_error(reader, weight, made.dequantize() / found.channel_scale), found.power, cut)
    return result


def _reach(weight: Tensor, args: QuantArgs, name: str) -> Tensor:
    """Scales that cover every weight of a group."""
    return qparams(*observed(weight, args, name), args).scale


def _error(reader: Reader, weight: Tensor, back: Tensor) -> float:
    return reader.unseen.error([back - weight]) / reader.unseen.error([weight])


def _needed(name: str, layers: int) -> bool:
    return not name.startswith("model.layers.") or int(name.split(".")[2]) < layers


def mean_error(errors: Mapping[str, Judged]) -> float:
    """Over the matrices."""
    return sum(one.error for one in errors.values()) / len(errors)
