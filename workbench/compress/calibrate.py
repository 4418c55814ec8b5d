"""Quantizes a model's layers one after the other, each for inputs as the quantized layers before it give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.compress.layer_by_layer import READERS, LayerByLayer
from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.quant.algorithms import awq, gptq, rtn
from workbench.quant.algorithms.gptq import ORDERS
from workbench.quant.args import QuantArgs, require_fit
from workbench.quant.result import QuantizedWeight, Report
from workbench.quant.stats import InputStats

ALGORITHMS = ("rtn", "gptq", "awq")
_ATTENTION_NORM, _MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How every matrix of every layer is quantized; embedding, head, norms and biases stay floats."""

    args: QuantArgs
    algorithm: str = "rtn"
    order: str = "static"
    """Act-order of ``gptq``."""
    damping: float = 0.01

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(f"algorithm {self.algorithm!r} is not known; choose from {', '.join(ALGORITHMS)}")
        if self.order not in ORDERS:
            raise UsageError(f"act-order {self.order!r} is not known; choose from {', '.join(ORDERS)}")


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer quantized."""

    index: int
    weights: dict[str, QuantizedWeight]
    """Its matrices, by their full names without ``.weight``."""
    others: dict[str, Tensor]
    """Its other tensors, by their full names; norms and biases that took up AWQ's scales are changed."""
    reports: list[Report]

    def tensors(self) -> dict[str, Tensor]:
        """The layer in floats again."""
        return {**{f"{name}.weight": w.dequantize() for name, w in self.weights.items()}, **self.others}


def quantize_layers(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    texts: Sequence[Sequence[int]],
    recipe: Recipe,
    *,
    masks: Sequence[Sequence[bool]] | None = None,
    finished: Callable[[int], LayerResult | None] = lambda index: None,
) -> Iterator[LayerResult]:
    """Gives each layer as soon as it is quantized.

    Args:
        weights: the model's, floats, by their Hugging Face names. They stay as they are.
        texts: token ids to calibrate with; ``rtn`` needs none, and then reports no output errors.
        masks: of each text, which tokens count in the statistics; None is all.
        finished: a layer that an earlier run has quantized, or None. It is given back as it is.

    Raises:
        UsageError: before any work, if groups do not divide a layer's inputs or an algorithm lacks texts.
        WorkbenchError: naming the tensor, where one is not finite (before any work), or its scales or what it is given
            are beyond the numbers they are kept in.
    """
    if config.latent is not None or config.experts is not None:
        raise UsageError(f"{config.architecture}: latent attention and experts are not quantized so far; choose a "
                         "model without them")  # fmt: skip
    shapes = {name: tuple(t.shape) for name, t in weights.items() if is_matrix(name)}
    require_fit(recipe.args, {name.removesuffix(".weight"): shape for name, shape in shapes.items()})
    if recipe.algorithm != "rtn" and not any(map(len, texts)):
        raise UsageError(f"algorithm {recipe.algorithm!r} needs calibration texts and there are none: use 'rtn'")
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise WorkbenchError(f"{name} holds infinities or NaN, which no format of fewer bits keeps: fetch the "
                                 "model again")  # fmt: skip
    run = LayerByLayer(config, weights, texts, masks) if texts else None
    for index in range(config.num_layers):
        tensors = {name: t for name, t in weights.items() if name.startswith(f"model.layers.{index}.")}
        result = finished(index)
        if result is None:
            with _named(f"layer {index}"):
                stats = run.observe(index, tensors) if run else None
            result = quantize_layer(config, index, tensors, stats, recipe)
            del stats
        if run is not None and index + 1 < config.num_layers:
            run.advance(index, result.tensors())
        yield result


@torch.inference_mode()
def quantize_layer(
    config: ModelConfig,
    index: int,
    tensors: Mapping[str, Tensor],
    stats: Mapping[str, InputStats] | None,
    recipe: Recipe,
) -> LayerResult:
    """Quantizes one layer's matrices for inputs by the names of `READERS`."""
    prefix = f"model.layers.{index}."
    own = {name.removeprefix(prefix): t.float() for name, t in tensors.items()}
    result = LayerResult(index, {}, {}, [])
    if recipe.algorithm == "awq":
        assert stats is not None
        _awq_layer(config, own, stats, recipe, prefix, result)
    else:
        for reader, names in READERS.items():
            seen = None if stats is None else stats[reader]
            for name in names:
                weight, full = own[f"{name}.weight"], prefix + name
                with _named(full):
                    if recipe.algorithm == "gptq":
                        assert seen is not None
                        made, told = gptq(weight, seen, recipe.args, recipe.order, recipe.damping, full)
                    else:
                        made, told = rtn(weight, recipe.args, seen, full)
                result.weights[full] = made
                result.reports.append(told)
    result.others.update({prefix + name: t for name, t in own.items() if not is_matrix(name)})
    return result


def _awq_layer(
    config: ModelConfig,
    own: dict[str, Tensor],
    stats: Mapping[str, InputStats],
    recipe: Recipe,
    prefix: str,
    result: LayerResult,
) -> None:
    """Last to first, as what a matrix's inputs are divided by goes into the rows of the matrix before, which is then
    quantized with it. Changes norms, biases and those rows in ``own``."""
    heads_are_alone = config.num_heads == config.num_kv_heads
    makers = {  # what makes the inputs of each: rows of a matrix with its bias, or a norm's weight
        "down": ("mlp.up_proj.weight", "mlp.up_proj.bias"),
        "gate_up": (_MLP_NORM,),
        # Query heads that share a value head would need one scale between them.
        "o": ("self_attn.v_proj.weight", "self_attn.v_proj.bias") if heads_are_alone else (),
        "qkv": (_ATTENTION_NORM,),
    }
    for reader, before in makers.items():
        names = READERS[reader]
        matrices = {prefix + name: own[f"{name}.weight"] for name in names}
        clipped = [name for name in matrices if not name.endswith(("q_proj", "k_proj"))]
        with _named(", ".join(matrices)):
            found = awq(matrices, stats[reader], recipe.args, scale=bool(before), clip=clipped)
        result.weights.update(found.weights)
        result.reports.extend(found.reports.values())
        for name in before:
            if name in own:
                channel = found.channel_scale
                own[name] = own[name] / (channel[:, None] if own[name].dim() == 2 else channel)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says what was quantized when its numbers were refused."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as why:
        raise WorkbenchError(f"{what}: {why}") from why


def is_matrix(name: str) -> bool:
    """Whether a tensor's name is that of a layer's matrix."""
    return any(name.endswith(f"{reader}.weight") for names in READERS.values() for reader in names)
