"""The batch that attention sees, and what a backend must do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from workbench.attention.latent_shape import LatentAttention


class Heads(NamedTuple):
    """What a model asks of attention: the number that queries and cache hold, their width, their types, their place."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    cache_dtype: torch.dtype
    """Of stored keys and values."""
    latent: LatentAttention | None = None
    """Set where one latent is stored for a token, not keys and values."""


@dataclass(slots=True)
class AttentionBatch:
    """One step's requests, flattened: the tokens of all of them stand one after the other."""

    query_start: list[int]
    """``[batch + 1]``: request b owns the tokens ``query_start[b] … query_start[b + 1]``."""
    seq_lens: list[int]
    """``[batch]``: tokens of each request in the cache once this step's are written; its queries are the last ones."""
    block_tables: torch.Tensor
    """``[batch, max_blocks]`` int64, short tables padded with the request's own first block."""
    block_size: int
    token_bytes: int
    """Bytes of one token's keys and values in one layer's cache."""
    starts: torch.Tensor
    """``query_start`` as int32 on the device."""
    lengths: torch.Tensor
    """``seq_lens`` as int32 on the device."""
    host_tables: Sequence[Sequence[int]] = ()
    """The block tables as the host knows them, not padded. Where lengths are on the device only, these are too."""


class AttentionBackend(Protocol):
    """Computes paged, causal, variable-length attention as `kernels.reference.paged_attention` defines it.

    It is made for a model's `Heads`.
    """

    name: str
    capturable: bool
    """Whether it reads a batch's tensors only, and none of their values, so that a step can be recorded."""

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> Any:
        """What does not change from layer to layer, worked out once a step for each window the model has."""

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: Any, scale: float) -> torch.Tensor:
        """q ``[num_tokens, num_heads, head_dim]`` against one layer's cache
        ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``; returns the shape of q."""


class LatentBackend(AttentionBackend, Protocol):
    """One that also computes `kernels.reference.latent_attention`, expanded or absorbed as it thinks best."""

    def attend_latent(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """q ``[num_tokens, num_heads, nope + rope]``, rotated, against one layer's cache of latents
        ``[num_blocks, block_size, rank + rope]``; returns ``[num_tokens, num_heads, value]``."""
