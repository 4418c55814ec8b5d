"""Safetensors checkpoints of quantized weights: GPTQ, AWQ and compressed-tensors, dequantized or as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.reference.weights import BLOCK, INT4_GROUPS, Weight, float_weight, weight_of_numbers
from workbench.checks import read_json_object
from workbench.model.weights.expected import EMBEDDING
from workbench.model.weights.files import load_safetensors, safetensors_names
from workbench.quant.codecs import Codec, codec_of
from workbench.quant.result import QuantizedWeight


def read_codec(folder: Path) -> Codec:
    """The format that a model folder's configuration speaks of. Raises UsageError for one that is not read."""
    return codec_of(read_json_object(folder / "config.json").get("quantization_config") or {})


def quantized_names(folder: Path) -> list[str]:
    """The weights that a checkpoint holds quantized, under the names that they had as floats."""
    first = f".{read_codec(folder).ENDS[0]}"
    return [f"{name.removesuffix(first)}.weight" for name in safetensors_names(folder) if name.endswith(first)]


def load_quantized(
    folder: Path, packed: bool = False, on_gpu: bool = False
) -> Iterator[tuple[str, torch.Tensor | Weight]]:
    """Every weight under the name that it had as floats, as soon as all its tensors are read, wherever they lie.

    ``packed``: as `as_weight` or, ``on_gpu``, `as_gpu_weight` has it, where that is not None; otherwise float32. What
    is not quantized comes as it is; for a CPU matrices of 16 bits stay packed as such.
    """
    codec = read_codec(folder)
    ends: dict[str, set[str]] = {}
    for name in safetensors_names(folder):
        stem, _, end = name.rpartition(".")
        if end in codec.ENDS:
            ends.setdefault(stem, set()).add(end)
    held: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_safetensors(folder, lambda name: name.rpartition(".")[2] in codec.ENDS):
        stem, _, end = name.rpartition(".")
        if stem not in ends or end not in ends[stem]:
            as_stored = packed and not on_gpu and tensor.dim() == 2 and tensor.dtype in (torch.float16, torch.bfloat16)
            yield name, float_weight(tensor) if as_stored else tensor
            continue
        parts = held.setdefault(stem, {})
        parts[end] = tensor
        if len(parts) == len(ends[stem]):
            made = codec.decode(held.pop(stem), stem)
            name = f"{stem}.weight"
            kept = None if not packed else as_weight(made) if not on_gpu else as_gpu_weight(made, name)
            yield name, made.dequantize() if kept is None else kept


def as_weight(weight: QuantizedWeight) -> Weight | None:
    """The same numbers as kernels compute with them; None where groups or scales are none of theirs.

    Larger groups become several with one scale; 8 bits need scales of rows, or of groups without zero points.
    """
    scale, zero, columns = weight.params.scale, weight.params.zero, weight.q.shape[1]
    if weight.group_of is not None or columns % scale.shape[1]:
        return None
    if weight.args.bits == 8 and scale.shape[1] == 1 and zero is None:
        return weight_of_numbers("int8", weight.q, scale)
    width = columns // scale.shape[1]
    groups = (BLOCK,) if weight.args.bits == 8 else INT4_GROUPS
    group = max((g for g in groups if width % g == 0), default=0)
    if not group or not torch.equal(scale.half().float(), scale) or (weight.args.bits == 8 and zero is not None):
        return None
    scale = scale.repeat_interleave(width // group, 1)
    if weight.args.bits == 8:
        return weight_of_numbers("q8_0", weight.q, scale)
    return _uint4(weight.q, scale, None if zero is None else zero.repeat_interleave(width // group, 1), group)


def as_gpu_weight(weight: QuantizedWeight, name: str) -> Weight | None:
    """The same numbers of 4 bits as the W4A16 kernel reads them; None where there are others, or groups or scales are
    none of its own, and for an embedding, whose rows are looked up.

    Groups stay as they are, a multiple of 32. With act-order the columns of a group become neighbours.
    """
    scale, columns = weight.params.scale, weight.q.shape[1]
    width = columns // scale.shape[1]
    if name == EMBEDDING or weight.args.bits != 4 or columns != width * scale.shape[1] or width % BLOCK:
        return None
    if not torch.equal(scale.half().float(), scale):
        return None
    if weight.group_of is None:
        return _uint4(weight.q, scale, weight.params.zero, width)
    order = weight.group_of.argsort(stable=True)
    if not torch.equal(weight.group_of[order], torch.arange(columns) // width):
        return None
    return _uint4(weight.q[:, order], scale, weight.params.zero, width, order)


def _uint4(
    q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int, order: torch.Tensor | None = None
) -> Weight:
    half = 8  # from the signed side
    zero = torch.zeros_like(scale) if zero is None else zero.float()
    return weight_of_numbers("uint4", q.short() + half, scale, zero + half, group, order)
