"""The plain gather: slow, obvious, and the specification; of latent attention too."""

from __future__ import annotations

from typing import NamedTuple

import torch

import kernels
from kernels.reference import absorb, lift
from workbench.attention.interface import AttentionBatch, Heads
from workbench.attention.latent_requests import Requests, apart


class _Prepared(NamedTuple):
    batch: AttentionBatch
    window: int | None
    absorbed: Requests | None
    expanded: Requests | None


class TorchNative:
    name = "torch_native"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self.latent = heads.latent

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        if self.latent is None:
            return _Prepared(batch, window, None, None)
        return _Prepared(batch, window, *apart(batch, self.latent))

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        batch = prepared.batch
        return kernels.paged_attention(
            q,
            cache,
            batch.block_tables,
            batch.query_start,
            batch.seq_lens,
            scale=scale,
            window=prepared.window,
            maker="reference",
        )

    def attend_latent(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: _Prepared,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        out = q.new_empty(q.shape[0], q.shape[1], value_up.shape[1])
        if prepared.absorbed is not None:
            rows, *paged = prepared.absorbed
            attended = kernels.paged_latent_attention(
                absorb(q[rows], key_up), cache, *paged, rank=key_up.shape[2], scale=scale, maker="reference"
            )
            out[rows] = lift(attended, value_up)
        if prepared.expanded is not None:
            rows, *paged = prepared.expanded
            out[rows] = kernels.expanded_latent_attention(
                q[rows], cache, *paged, key_up, value_up, scale=scale, maker="reference"
            )
        return out
