"""The decoder of the Llama family and its relatives, those with latent attention or a mixture of experts included.

Weights come under Hugging Face's names. Projections that read the same input are stacked into one matrix (query, key,
value; gate, up), so a step makes fewer and larger products.
"""

from __future__ import annotations

import copy

import torch

import kernels
from kernels.cpu.build import cannot_run
from workbench.attention.interface import AttentionBackend, Heads
from workbench.model.batch import Batch, Step
from workbench.model.config import ModelConfig
from workbench.model.kv_cache import KVCache
from workbench.model.latent_attention import LatentSelfAttention
from workbench.model.layer_weights import LayerWeights, Weights
from workbench.model.linear import Linear, embed, laid_out
from workbench.model.mlp import MLP, Mixture
from workbench.model.rope import rope_table
from workbench.model.self_attention import SelfAttention


class Layer:
    """One transformer block: a norm before attention, a norm before the MLP or the mixture of experts."""

    __slots__ = ("attention", "attn_norm", "mlp", "mlp_norm")

    def __init__(self, weights: LayerWeights, config: ModelConfig, index: int) -> None:
        own = weights.within("self_attn.")
        self.attn_norm = weights.vector("input_layernorm.weight")
        self.attention: SelfAttention | LatentSelfAttention
        if config.latent is None:
            self.attention = SelfAttention(own, config, config.window(index))
        else:
            self.attention = LatentSelfAttention(own, config)
        self.mlp_norm = weights.vector("post_attention_layernorm.weight")
        own, experts = weights.within("mlp."), config.experts
        self.mlp = Mixture(own, experts) if experts and experts.sparse_layers[index] else MLP(own)

    @property
    def num_bytes(self) -> int:
        """Of all its weights: what a step reads of it, if its tokens meet every expert."""
        norms = sum(norm.nbytes for norm in (self.attn_norm, self.mlp_norm) if norm is not None)
        return norms + self.attention.num_bytes + self.mlp.num_bytes


def heads_of(config: ModelConfig, dtype: torch.dtype, device: torch.device, cache_dtype: torch.dtype) -> Heads:
    """What a model asks of attention; ``dtype``: of activations, ``cache_dtype``: of what is stored."""
    return Heads(config.num_heads, config.num_kv_heads, config.head_dim, dtype, device, cache_dtype, config.latent)


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
            Layer(LayerWeights(weights, f"model.layers.{index}.", self.dtype, activation_bits), config, index)
            for index in range(config.num_layers)
        ]
        self.norm = norm.to(self.dtype)
        self.windows = list(dict.fromkeys(layer.attention.window for layer in self.layers))
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

    @property
    def expert_bytes(self) -> int:
        """Of all layers' experts: a step reads those of them that its tokens go to."""
        return sum(layer.mlp.expert_bytes for layer in self.layers if isinstance(layer.mlp, Mixture))

    @property
    def capturable(self) -> bool:
        """Whether `forward` looks at no value of the batch, only at shapes, so that a step may be recorded."""
        return self.attention.capturable and not any(isinstance(layer.mlp, Mixture) for layer in self.layers)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Normalized hidden states after the last layer, ``[num_tokens, hidden_size]``; writes the cache.

        Looks at no value of the batch unless there are experts, whose tokens are counted.
        """
        prepared = {w: self.attention.prepare(batch.attention, w, self.dtype) for w in self.windows}
        step = Step(batch, self.attention, prepared, self.cos, self.sin, self.maker)
        stream = embed(self.embedding, batch.token_ids)  # what all layers add to
        joins: torch.Tensor | None = None  # the last product, which the next norm adds to the stream
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            joins = self.through(layer, stream, joins, step, layer_cache)
        return self._joined(stream, joins, self.norm)

    def through(
        self, layer: Layer, stream: torch.Tensor, joins: torch.Tensor | None, step: Step, cache: torch.Tensor
    ) -> torch.Tensor:
        """One layer: adds ``joins`` and attention's output to ``stream`` in place and returns what is still to be
        added, each ``[num_tokens, hidden_size]``. ``cache``: this layer's."""
        attended = layer.attention(self._joined(stream, joins, layer.attn_norm), step, cache)
        hidden = kernels.rms_norm(attended, layer.mlp_norm, self.config.rms_norm_eps, stream, maker=self.maker)
        return layer.mlp(hidden, self.maker)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the next token, ``[rows, vocab_size]`` float32, of rows of `forward`; in ``out`` if given."""
        scores = self.lm_head(hidden)
        return scores.float() if out is None else out.copy_(scores)

    def _joined(self, stream: torch.Tensor, joins: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        eps = self.config.rms_norm_eps
        if joins is None:
            return kernels.rms_norm(stream, weight, eps, maker=self.maker)
        return kernels.rms_norm(joins, weight, eps, stream, maker=self.maker)
