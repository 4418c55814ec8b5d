"""What a step hands to the decoder, and what the decoder hands to its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from workbench.attention.interface import AttentionBackend, AttentionBatch


@dataclass(slots=True)
class Batch:
    """One step's input on the model's device: ``num_tokens`` tokens of all requests, one after the other."""

    token_ids: torch.Tensor
    """``[num_tokens]`` int64"""
    positions: torch.Tensor
    """``[num_tokens]`` int64: place in the request, from 0"""
    slots: torch.Tensor
    """``[num_tokens]`` int64: row of the cache that each token's keys and values go to"""
    attention: AttentionBatch
    sampled_rows: torch.Tensor
    """``[num_sampled]`` int64: the tokens whose logits are wanted"""


@dataclass(slots=True)
class Step:
    """A batch with what all layers share while it is computed."""

    batch: Batch
    backend: AttentionBackend
    prepared: dict[int | None, Any]
    """By window: what the backend has worked out."""
    cos: torch.Tensor
    """``[max_model_len, rotary_dim // 2]`` float32"""
    sin: torch.Tensor
    maker: str
    """Of the operations between products, see `kernels`."""
