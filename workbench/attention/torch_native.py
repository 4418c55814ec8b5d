"""The plain gather: slow, obvious, and the specification. The one that also computes latent attention."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch

import kernels
from kernels.reference import absorb, lift
from workbench.attention.interface import AttentionBatch, Heads


class _Requests(NamedTuple):
    """Some of a batch's requests."""

    rows: torch.Tensor
    """``[num_tokens]`` int64: their rows of q"""
    block_tables: torch.Tensor
    query_start: list[int]
    seq_lens: list[int]


class _Prepared(NamedTuple):
    batch: AttentionBatch
    window: int | None
    absorbed: _Requests | None
    expanded: _Requests | None


class TorchNative:
    name = "torch_native"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self.latent = heads.latent

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        if self.latent is None:
            return _Prepared(batch, window, None, None)
        counts = [end - begin for begin, end in zip(batch.query_start, batch.query_start[1:], strict=False)]
        starts = [length - count for length, count in zip(batch.seq_lens, counts, strict=True)]
        expands = [self.latent.expands(start, count) for start, count in zip(starts, counts, strict=True)]
        return _Prepared(batch, window, _requests(batch, expands, False), _requests(batch, expands, True))

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


def _requests(batch: AttentionBatch, chosen: list[bool], wanted: bool) -> _Requests | None:
    """Those of the batch's requests that are ``chosen`` as ``wanted``; None where there is none."""
    picked = [b for b, one in enumerate(chosen) if one == wanted]
    if not picked:
        return None
    device, starts = batch.block_tables.device, batch.query_start
    rows = [row for b in picked for row in range(starts[b], starts[b + 1])]
    return _Requests(
        torch.tensor(rows, device=device),
        batch.block_tables[torch.tensor(picked, device=device)],
        [0, *accumulate(starts[b + 1] - starts[b] for b in picked)],
        [batch.seq_lens[b] for b in picked],
    )
