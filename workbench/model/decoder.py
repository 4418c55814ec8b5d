"""The decoder of the Llama family: Llama 2/3, Qwen2/2.5, Qwen3, Mistral, SmolLM2.

Weights come under Hugging Face's names. Projections that read the same input are stacked into one matrix (query, key,
value; gate, up), so a step makes fewer and larger products.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import kernels
from workbench.attention.interface import AttentionBackend, AttentionBatch
from workbench.model.config import ModelConfig
from workbench.model.kv_cache import KVCache
from workbench.model.linear import Linear
from workbench.model.rope import rope_table


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


class Layer:
    """One transformer block's weights."""

    __slots__ = ("attn_norm", "down", "gate_up", "k_norm", "mlp_norm", "o", "q_norm", "qkv", "window")

    def __init__(self, weights: dict[str, torch.Tensor], index: int, window: int | None) -> None:
        """Takes its tensors out of ``weights``, so that a stacked matrix and its parts exist together only briefly."""

        def take(name: str) -> torch.Tensor | None:
            return weights.pop(f"model.layers.{index}.{name}", None)

        def linear(*names: str) -> Linear:
            matrices = [m for name in names if (m := take(f"{name}.weight")) is not None]
            biases = [b for name in names if (b := take(f"{name}.bias")) is not None]
            return Linear(_stack(matrices), _stack(biases) if biases else None)

        self.attn_norm = take("input_layernorm.weight")
        self.qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.q_norm = take("self_attn.q_norm.weight")
        self.k_norm = take("self_attn.k_norm.weight")
        self.o = linear("self_attn.o_proj")
        self.mlp_norm = take("post_attention_layernorm.weight")
        self.gate_up = linear("mlp.gate_proj", "mlp.up_proj")
        self.down = linear("mlp.down_proj")
        self.window = window


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class Decoder:
    """A whole model: token ids in, logits out, keys and values into a paged cache on the way.

    ``weights`` must hold every tensor of `workbench.model.weights.expected_tensors`; it is emptied.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, torch.Tensor],
        attention: AttentionBackend,
        max_model_len: int,
    ) -> None:
        config.require_supported()
        self.config = config
        self.attention = attention
        self.embedding = weights.pop("model.embed_tokens.weight")
        self.layers = [Layer(weights, index, config.window(index)) for index in range(config.num_layers)]
        self.norm = weights.pop("model.norm.weight")
        self.lm_head = Linear(weights.pop("lm_head.weight", self.embedding))
        self.windows = list(dict.fromkeys(layer.window for layer in self.layers))
        self.scale = config.head_dim**-0.5
        self.cos, self.sin = rope_table(config, max_model_len, self.embedding.device)

    def sharing_weights(self, attention: AttentionBackend, max_model_len: int) -> Decoder:
        """Another decoder over the same weights, for another backend or another context length."""
        other = copy.copy(self)
        other.attention = attention
        other.cos, other.sin = rope_table(self.config, max_model_len, self.device)
        return other

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Hidden states after the last layer, ``[num_tokens, hidden_size]``; writes the cache."""
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        prepared = {w: self.attention.prepare(batch.attention, w, self.dtype) for w in self.windows}
        x = F.embedding(batch.token_ids, self.embedding)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x += self._attend(layer, x, cos, sin, batch.slots, layer_cache, prepared[layer.window])
            hidden = kernels.rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps)
            x += layer.down(kernels.silu_mul(layer.gate_up(hidden)))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, ``[rows, vocab_size]`` float32, for rows of `forward`'s result."""
        return self.lm_head(kernels.rms_norm(hidden, self.norm, self.config.rms_norm_eps)).float()

    def _attend(
        self,
        layer: Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(kernels.rms_norm(x, layer.attn_norm, config.rms_norm_eps))
        qkv = qkv.view(-1, heads + 2 * kv_heads, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv[:, :heads] = kernels.rms_norm(qkv[:, :heads], layer.q_norm, config.rms_norm_eps)
            qkv[:, heads:-kv_heads] = kernels.rms_norm(qkv[:, heads:-kv_heads], layer.k_norm, config.rms_norm_eps)
        # Query and key heads stand side by side and turn together; key and value heads stand side by side too, in the
        # cache's own order, and are stored as one row.
        kernels.rotary_embedding(qkv[:, : heads + kv_heads], cos, sin)
        kernels.write_kv(qkv[:, heads:].view(-1, 2, kv_heads, config.head_dim), cache, slots)
        attended = self.attention.attend(qkv[:, :heads], cache, prepared, self.scale)
        return layer.o(attended.reshape(-1, heads * config.head_dim))
