"""Keys and values of a batch gathered into one row, for kernels that cannot read pages."""

from __future__ import annotations

from typing import NamedTuple

import torch

from workbench.attention.interface import AttentionBatch


class Seen(NamedTuple):
    """The cached tokens that some query of the batch may see, request by request."""

    slots: torch.Tensor
    """``[total_k]`` int64: where they lie."""
    owners: torch.Tensor
    """``[total_k]`` int64: whose they are."""
    positions: torch.Tensor
    """``[total_k]`` int64: which token of the request each is."""
    counts: list[int]
    """``[batch]``: how many each request has."""

    def gather(self, cache: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each ``[total_k, num_kv_heads, head_dim]``."""
        keys, values = cache.flatten(0, 1).index_select(0, self.slots).to(dtype).unbind(1)
        return keys, values


def seen_by(batch: AttentionBatch, window: int | None) -> Seen:
    """Causal attention is aligned at the last token, so leaving out a request's first keys moves nothing."""
    device, starts, lengths = batch.block_tables.device, batch.query_start, batch.seq_lens
    firsts = [0] * len(lengths)
    if window is not None:
        firsts = [max(0, n - (starts[b + 1] - starts[b]) - window + 1) for b, n in enumerate(lengths)]
    counts = [n - first for n, first in zip(lengths, firsts, strict=True)]
    owners = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(counts, device=device))
    positions = torch.cat([torch.arange(first, n, device=device) for first, n in zip(firsts, lengths, strict=True)])
    blocks = batch.block_tables[owners, positions // batch.block_size]
    return Seen(blocks * batch.block_size + positions % batch.block_size, owners, positions, counts)
