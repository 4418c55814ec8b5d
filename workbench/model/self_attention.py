"""Attention with keys and values of their own: multi-head, grouped-query and multi-query."""

from __future__ import annotations

import torch

import kernels
from workbench.model.batch import Step
from workbench.model.config import ModelConfig
from workbench.model.layer_weights import LayerWeights


class SelfAttention:
    """Query, key and value projections stacked into one, rotation, attention, output projection."""

    def __init__(self, weights: LayerWeights, config: ModelConfig, window: int | None) -> None:
        self.qkv = weights.linear("q_proj", "k_proj", "v_proj")
        self.q_norm = weights.vector("q_norm.weight")
        self.k_norm = weights.vector("k_norm.weight")
        self.o = weights.linear("o_proj")
        self.window = window
        self._heads, self._head_dim = config.num_heads, config.head_dim
        self._eps, self._scale = config.rms_norm_eps, config.softmax_scale

    @property
    def num_bytes(self) -> int:
        norms = sum(norm.nbytes for norm in (self.q_norm, self.k_norm) if norm is not None)
        return norms + self.qkv.num_bytes + self.o.num_bytes

    def __call__(self, hidden: torch.Tensor, step: Step, cache: torch.Tensor) -> torch.Tensor:
        """hidden ``[num_tokens, hidden_size]``; writes this layer's ``cache``; returns the shape of hidden."""
        batch = step.batch
        qkv = self.qkv(hidden)
        kernels.rope_and_write(
            qkv, batch.positions, step.cos, step.sin, batch.slots, cache, self.q_norm, self.k_norm, self._eps,
            maker=step.maker,
        )  # fmt: skip
        queries = qkv.view(len(qkv), -1, self._head_dim)[:, : self._heads]
        attended = step.backend.attend(queries, cache, step.prepared[self.window], self._scale)
        return self.o(attended.reshape(len(qkv), self._heads * self._head_dim))
