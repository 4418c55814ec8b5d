"""The plain gather: slow, obvious, and the specification."""

from __future__ import annotations

from typing import NamedTuple

import torch

import kernels
from workbench.attention.interface import AttentionBatch


class _Prepared(NamedTuple):
    batch: AttentionBatch
    window: int | None


class TorchNative:
    name = "torch_native"
    capturable = False

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        return _Prepared(batch, window)

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
