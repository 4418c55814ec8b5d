"""A checkpoint with fewer KV heads: neighbouring heads averaged (GQA from MHA; Ainslie et al. 2023, section 2.1).

Averaging keeps a model's shape and not its answers: whoever does it trains on afterwards. The other direction, copying
each head, changes no answer: a model with grouped heads *is* one with more heads, some of them alike.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from workbench.checks import read_json_object
from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.weights.files import load_safetensors

PROJECTIONS = (".k_proj.weight", ".k_proj.bias", ".v_proj.weight", ".v_proj.bias")
"""Tensors whose rows are KV heads."""


def pooled(rows: torch.Tensor, num_kv_heads: int, groups: int) -> torch.Tensor:
    """Each group's mean: rows ``[num_kv_heads · head_dim, …]`` → ``[groups · head_dim, …]``, neighbours in a group."""
    return rows.unflatten(0, (groups, num_kv_heads // groups, -1)).mean(1).flatten(0, 1)


def copied(rows: torch.Tensor, num_kv_heads: int, heads: int) -> torch.Tensor:
    """Each head ``heads / num_kv_heads`` times, copies side by side: ``[heads · head_dim, …]``."""
    return rows.unflatten(0, (num_kv_heads, -1)).repeat_interleave(heads // num_kv_heads, 0).flatten(0, 1)


def with_kv_heads(source: Path, target: Path, num_kv_heads: int) -> Path:
    """Writes the model of the folder ``source`` with another number of KV heads into ``target``, and returns that.

    Fewer: neighbours are averaged. More: they are copied. Raises UsageError where one number does not divide the other,
    for more KV heads than query heads, for latent attention, and for a target that is the source.
    """
    config = ModelConfig.from_path(source)
    have, most = config.num_kv_heads, config.num_heads
    if config.latent is not None:
        raise UsageError(f"{source} has latent attention: it keeps no keys and values of heads that could be averaged")
    if not 1 <= num_kv_heads <= most or most % num_kv_heads or max(have, num_kv_heads) % min(have, num_kv_heads):
        raise UsageError(
            f"num_kv_heads={num_kv_heads} cannot be had from {have}: it must divide the {most} query heads, and one "
            "of the two numbers the other"
        )
    if target.resolve() == source.resolve():
        raise UsageError(f"{target} is the model itself: give another folder")
    change = pooled if num_kv_heads < have else copied
    tensors = {
        name: change(tensor, have, num_kv_heads) if name.endswith(PROJECTIONS) else tensor
        for name, tensor in load_safetensors(source)
    }
    target.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(target / "model.safetensors"))
    raw = {**read_json_object(source / "config.json"), "num_key_value_heads": num_kv_heads}
    (target / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    return target
