"""The decoder of the Llama family: Llama 2/3, Qwen2/2.5, Qwen3, Mistral, SmolLM2.

Weights come under Hugging Face's names. Projections that read the same input are stacked into one matrix (query, key,
value; gate, up), so a step makes fewer and larger products.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

import kernels
from kernels.cpu.build import cannot_run
from workbench.attention.interface import AttentionBackend, AttentionBatch
from workbench.model.config import ModelConfig
from workbench.model.kv_cache import KVCache
from workbench.model.linear import Linear, Matrix, embed, laid_out
from workbench.model.rope import rope_table

Weights = dict[str, torch.Tensor | Matrix]


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

    def __init__(
        self, weights: Weights, index: int, window: int | None, dtype: torch.dtype, activation_bits: int
    ) -> None:
        """Takes its tensors out of ``weights``, so that a stacked matrix and its parts exist together only briefly."""

        def take(name: str) -> torch.Tensor | None:
            found = weights.pop(f"model.layers.{index}.{name}", None)
            return None if found is None else found.to(dtype)  # type: ignore[union-attr]

        def linear(*names: str) -> Linear:
            matrices = [weights.pop(f"model.layers.{index}.{name}.weight") for name in names]
            biases = [b for name in names if (b := take(f"{name}.bias")) is not None]
            return Linear(matrices, torch.cat(biases) if biases else None, activation_bits)

        self.attn_norm = take("input_layernorm.weight")
        self.qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.q_norm = take("self_attn.q_norm.weight")
        self.k_norm = take("self_attn.k_norm.weight")
        self.o = linear("self_attn.o_proj")
        self.mlp_norm = take("post_attention_layernorm.weight")
        self.gate_up = linear("mlp.gate_proj", "mlp.up_proj")
        self.down = linear("mlp.down_proj")
        self.window = window

    @property
    def num_bytes(self) -> int:
        """Of all its weights: what a step reads of it."""
        norms = (self.attn_norm, self.q_norm, self.k_norm, self.mlp_norm)
        linears = (self.qkv, self.o, self.gate_up, self.down)
        return sum(n.nbytes for n in norms if n is not None) + sum(one.num_bytes for one in linears)


def activation_dtype(weights: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of activations. Our kernels for CPUs multiply weights of 16 bits with float32 activations: processors
    without 16-bit arithmetic are ten times slower at it, and memory is read by weights."""
    return torch.float32 if device.type == "cpu" and not cannot_run() else weights


class Decoder:
    """A whole model: token ids in, logits out, keys and values into a paged cache on the way.

    ``weights`` must hold every tensor of `workbench.model.weights.expected_tensors`, matrices as tensors or in one of
    the formats of `kernels.reference.weights`; it is emptied. ``activation_bits``: what activations are rounded to
    where they meet whole-number weights, the head's excepted.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        attention: AttentionBackend,
        max_model_len: int,
        activation_bits: int = 16,
    ) -> None:
        config.require_supported()
        self.config = config
        self.attention = attention
        self.embedding = laid_out(weights.pop("model.embed_tokens.weight"))
        self.lm_head = Linear([weights.pop("lm_head.weight", self.embedding)])
        norm = weights["model.norm.weight"]
        assert isinstance(norm, torch.Tensor)
        self.device = norm.device
        self.dtype = activation_dtype(norm.dtype, norm.device)
        """Of activations."""
        self.maker = "auto"
        """Who makes the operations between the products, see `kernels`; ``reference``: torch, none fused."""
        self.layers = [
            Layer(weights, index, config.window(index), self.dtype, activation_bits)
            for index in range(config.num_layers)
        ]
        self.norm = norm.to(self.dtype)
        self.windows = list(dict.fromkeys(layer.window for layer in self.layers))
        self.scale = config.head_dim**-0.5
        self.cos, self.sin = rope_table(config, max_model_len, self.device)

    def sharing_weights(self, attention: AttentionBackend, max_model_len: int) -> Decoder:
        """Another decoder over the same weights, for another backend or another context length."""
        other = copy.copy(self)
        other.attention = attention
        other.cos, other.sin = rope_table(self.config, max_model_len, self.device)
        return other

    @property
    def weight_bytes(self) -> tuple[int, int]:
        """What a step reads: of the layers and the norm, and of the head, which only a step reads that samples."""
        return sum(layer.num_bytes for layer in self.layers) + self.norm.nbytes, self.lm_head.num_bytes

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Normalized hidden states after the last layer, ``[num_tokens, hidden_size]``; writes the cache.

        Looks at no value of the batch, only at shapes, so a step of these shapes may be recorded and replayed.
        """
        eps = self.config.rms_norm_eps
        prepared = {w: self.attention.prepare(batch.attention, w, self.dtype) for w in self.windows}
        stream = embed(self.embedding, batch.token_ids)  # what all layers add to
        joins: torch.Tensor | None = None  # the last product, which the next norm adds to the stream
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = self._joined(stream, joins, layer.attn_norm)
            attended = self._attend(layer, hidden, batch, layer_cache, prepared[layer.window])
            hidden = kernels.rms_norm(layer.o(attended), layer.mlp_norm, eps, stream, maker=self.maker)
            joins = layer.down(kernels.silu_mul(layer.gate_up(hidden), maker=self.maker))
        return self._joined(stream, joins, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, ``[rows, vocab_size]`` float32, for rows of `forward`'s result."""
        return self.lm_head(hidden).float()

    def _joined(self, stream: torch.Tensor, joins: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        eps = self.config.rms_norm_eps
        if joins is None:
            return kernels.rms_norm(stream, weight, eps, maker=self.maker)
        return kernels.rms_norm(joins, weight, eps, stream, maker=self.maker)

    def _attend(
        self, layer: Layer, hidden: torch.Tensor, batch: Batch, cache: torch.Tensor, prepared: Any
    ) -> torch.Tensor:
        """Before the output projection: ``[num_tokens, num_heads · head_dim]``."""
        config = self.config
        qkv = layer.qkv(hidden)
        kernels.rope_and_write(
            qkv, batch.positions, self.cos, self.sin, batch.slots, cache, layer.q_norm, layer.k_norm,
            config.rms_norm_eps, maker=self.maker,
        )  # fmt: skip
        queries = qkv.view(len(qkv), -1, config.head_dim)[:, : config.num_heads]
        attended = self.attention.attend(queries, cache, prepared, self.scale)
        return attended.reshape(len(qkv), config.num_heads * config.head_dim)
