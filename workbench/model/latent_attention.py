"""Multi-head latent attention, as in DeepSeek-V2 and V3: one small latent a token is cached."""

from __future__ import annotations

from typing import cast

import torch

import kernels
from workbench.attention.interface import LatentBackend
from workbench.model.batch import Step
from workbench.model.config import ModelConfig
from workbench.model.layer_weights import LayerWeights

INNER_EPS = 1e-6
"""Of the norms of the two bottlenecks, whatever ``rms_norm_eps`` says."""


class LatentSelfAttention:
    """Down to the latents, norms, up to queries, rotation, attention over latents, output projection.

    The matrices that build keys and values from latents are met from both sides (`kernels.reference.latent_attention`),
    so they stay floats whatever the other weights are kept in.
    """

    def __init__(self, weights: LayerWeights, config: ModelConfig) -> None:
        assert config.latent is not None
        self.shape = shape = config.latent
        first = "q_proj" if shape.q_lora_rank is None else "q_a_proj"
        self.down = weights.linear(first, "kv_a_proj_with_mqa")
        """To the query (or its latent), and to the latent and the rotated key."""
        self.kv_norm = weights.vector("kv_a_layernorm.weight")
        self.q_norm = weights.vector("q_a_layernorm.weight")
        self.q_up = None if shape.q_lora_rank is None else weights.linear("q_b_proj")
        up = weights.floats("kv_b_proj.weight").to(weights.dtype)
        self.key_up, self.value_up = up.unflatten(0, (config.num_heads, -1)).split(
            (shape.qk_nope_head_dim, shape.v_head_dim), 1
        )
        """``[num_heads, qk_nope_head_dim, kv_lora_rank]`` and ``[num_heads, v_head_dim, kv_lora_rank]``."""
        self.o = weights.linear("o_proj")
        self.window = None
        self._heads, self._scale = config.num_heads, config.softmax_scale

    @property
    def num_bytes(self) -> int:
        tensors = (self.kv_norm, self.q_norm, self.key_up, self.value_up)
        linears = (self.down, self.q_up, self.o)
        return sum(t.nbytes for t in tensors if t is not None) + sum(one.num_bytes for one in linears if one)

    def __call__(self, hidden: torch.Tensor, step: Step, cache: torch.Tensor) -> torch.Tensor:
        """hidden ``[num_tokens, hidden_size]``; writes this layer's ``cache``; returns the shape of hidden."""
        shape, batch, backend = self.shape, step.batch, cast(LatentBackend, step.backend)
        down = self.down(hidden)
        q, latent, rotated = down.split(
            (down.shape[1] - shape.cached_width, shape.kv_lora_rank, shape.qk_rope_head_dim), 1
        )
        if self.q_up is not None:
            q = self.q_up(kernels.rms_norm(q, self.q_norm, INNER_EPS, maker=step.maker))
        q = q.unflatten(1, (self._heads, shape.query_dim))
        cos, sin = step.cos[batch.positions], step.sin[batch.positions]
        kernels.rotary_embedding(q[..., shape.qk_nope_head_dim :], cos, sin, shape.interleaved, maker=step.maker)
        kernels.rotary_embedding(rotated[:, None], cos, sin, shape.interleaved, maker=step.maker)
        latent = kernels.rms_norm(latent, self.kv_norm, INNER_EPS, maker=step.maker)
        kernels.write_kv(torch.cat((latent, rotated), 1), cache, batch.slots, maker=step.maker)
        prepared = step.prepared[self.window]
        attended = backend.attend_latent(q, cache, prepared, self.key_up, self.value_up, self._scale)
        return self.o(attended.flatten(1))
