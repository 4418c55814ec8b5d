"""Which requests of a step compute latent attention absorbed, and which expanded."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch

from workbench.attention.interface import AttentionBatch
from workbench.attention.latent_shape import LatentAttention


class Requests(NamedTuple):
    """Some of a batch's requests."""

    rows: torch.Tensor
    """``[num_tokens]`` int64: their rows of q"""
    block_tables: torch.Tensor
    query_start: list[int]
    seq_lens: list[int]


def apart(batch: AttentionBatch, latent: LatentAttention) -> tuple[Requests | None, Requests | None]:
    """Those that are computed absorbed, and those expanded, by what takes fewer FLOPs; None where there is none."""
    counts = [end - begin for begin, end in zip(batch.query_start, batch.query_start[1:], strict=False)]
    starts = [length - count for length, count in zip(batch.seq_lens, counts, strict=True)]
    expands = [latent.expands(start, count) for start, count in zip(starts, counts, strict=True)]
    return requests(batch, expands, False), requests(batch, expands, True)


def requests(batch: AttentionBatch, chosen: list[bool], wanted: bool) -> Requests | None:
    """Those of the batch's requests that are ``chosen`` as ``wanted``; None where there is none."""
    picked = [b for b, one in enumerate(chosen) if one == wanted]
    if not picked:
        return None
    device, starts = batch.block_tables.device, batch.query_start
    rows = [row for b in picked for row in range(starts[b], starts[b + 1])]
    return Requests(
        torch.tensor(rows, device=device),
        batch.block_tables[torch.tensor(picked, device=device)],
        [0, *accumulate(starts[b + 1] - starts[b] for b in picked)],
        [batch.seq_lens[b] for b in picked],
    )
