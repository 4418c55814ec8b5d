"""Safetensors checkpoints of quantized weights: GPTQ, AWQ and compressed-tensors, dequantized or as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.reference.weights import BLOCK, INT4_GROUPS, Weight, float_weight, weight_of_numbers
from workbench.checks import read_json_object
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


def load_quantized(folder: Path, packed: bool = False) -> Iterator[tuple[str, torch.Tensor | Weight]]:
    """Every weight under the name that it had as floats, as soon as all its tensors are read, wherever they lie.

    ``packed``: as `as_weight` has it, where that is not None; otherwise float32. What is not quantized comes as it is,
    matrices of 16 bits as such.
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
            as_stored = packed and tensor.dim() == 2 and tensor.dtype in (torch.float16, torch.bfloat16)
            yield name, float_weight(tensor) if as_stored else tensor
            continue
        parts = held.setdefault(stem, {})
        parts[end] = tensor
        if len(parts) == len(ends[stem]):
            made = codec.decode(held.pop(stem), stem)
            kept = as_weight(made) if packed else None
            yield f"{stem}.weight", made.dequantize() if kept is None else kept


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
    half = 8  # from the signed side
    zero = torch.zeros_like(scale) if zero is None else zero.float().repeat_interleave(width // group, 1)
    return weight_of_numbers("uint4", weight.q.short() + half, scale, zero + half, group)
