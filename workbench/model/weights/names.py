"""Names that checkpoints give to the same tensors: experts one by one or stacked, Mixtral's own, further layers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from workbench.model.config import ModelConfig

_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL_EXPERT = re.compile(r"(.+\.mlp\.experts\.\d+)\.(w[123])\.weight")
_STACKED = re.compile(r"(.+\.mlp\.experts)\.(gate_up_proj|down_proj)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def one_by_one(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A stored tensor under the names of `expected_tensors`: itself, or one for each expert and matrix.

    Stacked, as transformers 5 keeps experts: ``gate_up_proj`` ``[experts, 2 · inner, hidden]``, gates first, and
    ``down_proj`` ``[experts, hidden, inner]``.
    """
    name = name.replace(".block_sparse_moe.", ".mlp.")
    if match := _MIXTRAL_EXPERT.fullmatch(name):
        name = f"{match[1]}.{_MIXTRAL[match[2]]}.weight"
    match = _STACKED.fullmatch(name)
    if match is None or tensor.dim() != 3:
        yield name, tensor
        return
    for expert, matrix in enumerate(tensor):
        if match[2] == "down_proj":
            yield f"{match[1]}.{expert}.down_proj.weight", matrix
            continue
        # Odd rows cannot be halves: the shorter one is then told to be of another shape.
        gate, up = matrix.tensor_split(2)
        yield f"{match[1]}.{expert}.gate_proj.weight", gate
        yield f"{match[1]}.{expert}.up_proj.weight", up


def of_prediction_layer(name: str, config: ModelConfig) -> bool:
    """Whether a tensor belongs to a layer after the last, which predicts further tokens and is not run here."""
    match = _LAYER.match(name)
    return match is not None and 0 <= int(match[1]) - config.num_layers < config.prediction_layers
