"""Calibration texts through a model one layer at a time: what each matrix of a layer is given, then on to the next.

Between layers only hidden states are kept, ``[tokens, hidden_size]`` for all texts; weights of one layer are laid out
at a time, and statistics live as long as their layer. The engine's own decoder computes, one text after the other, so
there is no padding that could get in; a mask says which tokens of a text count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from workbench.attention.interface import AttentionBatch
from workbench.attention.registry import attention_backend
from workbench.errors import UsageError
from workbench.model.batch import Batch, Step
from workbench.model.config import ModelConfig
from workbench.model.decoder import Decoder, Layer, heads_of
from workbench.model.kv_cache import KVCache
from workbench.model.layer_weights import LayerWeights
from workbench.model.linear import Linear, embed
from workbench.model.weights.expected import EMBEDDING
from workbench.quant.stats import InputStats

READERS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The matrices that read the same inputs, under the names that `SelfAttention` and `MLP` have for them."""
NORM = "model.norm.weight"
BLOCK_SIZE = 16


class _Listening:
    """A `Linear` that counts its inputs."""

    def __init__(self, linear: Linear, stats: InputStats) -> None:
        self._linear, self._stats = linear, stats
        self.mask: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        self._stats.add(x, self.mask)
        return self._linear(x)


class LayerByLayer:
    """Hidden states of all texts before the next layer."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        texts: Sequence[Sequence[int]],
        masks: Sequence[Sequence[bool]] | None = None,
    ) -> None:
        """texts: token ids. masks: of each text, which tokens count; None is all. ``weights``: at least the embedding
        and the last norm. Raises UsageError for texts that are empty or too long, and for masks of other lengths."""
        most = config.max_position_embeddings
        for number, text in enumerate(texts):
            if not 0 < len(text) <= most:
                raise UsageError(f"calibration text {number} has {len(text)} tokens: give 1 to {most}")
            if masks is not None and len(masks[number]) != len(text):
                raise UsageError(f"calibration text {number}: {len(masks[number])} mask values for {len(text)} tokens")
        dtype, device = weights[NORM].dtype, weights[NORM].device
        longest = max(map(len, texts), default=1)
        heads = heads_of(config, dtype, device, dtype)
        parts = {EMBEDDING: weights[EMBEDDING], NORM: weights[NORM]}
        bare = replace(config, num_layers=0)
        self._config = config
        self._decoder = Decoder(bare, parts, attention_backend("auto", heads), longest)
        blocks = -(-longest // BLOCK_SIZE)
        self._cache = KVCache(replace(config, num_layers=1), blocks, BLOCK_SIZE, self._decoder.dtype, device)
        self._masks = None if masks is None else [torch.tensor(mask, dtype=torch.bool) for mask in masks]
        self._batches = [self._batch(text) for text in texts]
        self._hidden = [embed(self._decoder.embedding, batch.token_ids) for batch in self._batches]

    def observe(self, index: int, tensors: Mapping[str, Tensor]) -> dict[str, InputStats]:
        """What the matrices of a layer are given, by the names of `READERS`. ``tensors``: the layer's, by their full
        names."""
        layer = self._layer(index, tensors)
        stats, listening = {}, []
        for name, readers in READERS.items():
            channels = tensors[f"model.layers.{index}.{readers[0]}.weight"].shape[1]
            stats[name] = InputStats(channels)
            part = layer.attention if name in ("qkv", "o") else layer.mlp
            listening.append(_Listening(getattr(part, name), stats[name]))
            setattr(part, name, listening[-1])
        for number in range(len(self._batches)):
            for one in listening:
                one.mask = None if self._masks is None else self._masks[number]
            self._through(layer, number)
        return stats

    def advance(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Takes all texts through a layer, which is the quantized one if its successors are to make up for it."""
        layer = self._layer(index, tensors)
        self._hidden = [self._through(layer, number) for number in range(len(self._batches))]

    @property
    def hidden(self) -> list[Tensor]:
        """Of each text, ``[tokens, hidden_size]``: what the next layer is given."""
        return self._hidden

    def _layer(self, index: int, tensors: Mapping[str, Tensor]) -> Layer:
        own = LayerWeights(dict(tensors), f"model.layers.{index}.", self._decoder.dtype, 16)
        return Layer(own, self._config, index)

    @torch.inference_mode()
    def _through(self, layer: Layer, number: int) -> Tensor:
        batch, stream = self._batches[number], self._hidden[number].clone()
        decoder, window = self._decoder, layer.attention.window
        prepared = {window: decoder.attention.prepare(batch.attention, window, decoder.dtype)}
        step = Step(batch, decoder.attention, prepared, decoder.cos, decoder.sin, decoder.maker)
        joins = decoder.through(layer, stream, None, step, self._cache.layers[0])
        return stream.add_(joins)

    def _batch(self, text: Sequence[int]) -> Batch:
        device, length = self._decoder.device, len(text)
        places = torch.arange(length, device=device)
        attention = AttentionBatch(
            [0, length],
            [length],
            torch.arange(-(-length // BLOCK_SIZE), device=device)[None],
            BLOCK_SIZE,
            self._cache.token_bytes,
            torch.tensor([0, length], dtype=torch.int32, device=device),
            torch.tensor([length], dtype=torch.int32, device=device),
        )
        return Batch(torch.tensor(text, device=device), places, places, attention, places[-1:])
