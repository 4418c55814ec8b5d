"""FlashMLA (`flash_mla_with_kvcache`): absorbed attention over pages of latents. Never yet run on hardware.

Queries are ``[batch, queries, num_heads, 576]``, alike many for each request of a call, so a step is one call for each
number of queries in it: all its decodes together. The cache is ``[num_blocks, block_size, 1, 576]`` with pages of
64; the first 512 numbers of a row are its value. A schedule (``get_mla_metadata``) is made anew for each
set of requests and serves all layers of the step. A chunk of a prompt is computed absorbed too: right, and slower than
the expanded way.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from kernels.reference import absorb, lift
from workbench.attention.interface import AttentionBatch, Heads


class _Group(NamedTuple):
    rows: torch.Tensor  # [batch · queries] rows of q
    batch: int
    block_tables: torch.Tensor  # [batch, max_blocks] int32
    lengths: torch.Tensor  # [batch] int32
    schedule: Any


class Adapter:
    name = "flashmla"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        library = import_module("flash_mla")
        self._attend, self._schedule = library.flash_mla_with_kvcache, library.get_mla_metadata

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> list[_Group]:
        device, starts = batch.block_tables.device, batch.query_start
        by_count: dict[int, list[int]] = {}
        for b, (begin, end) in enumerate(pairwise(starts)):
            by_count.setdefault(end - begin, []).append(b)
        groups = []
        for count, requests in by_count.items():
            if count:
                rows = torch.tensor([row for b in requests for row in range(starts[b], starts[b + 1])], device=device)
                own = torch.tensor(requests, device=device)
                schedule, _ = self._schedule()
                tables = batch.block_tables[own].to(torch.int32)
                groups.append(_Group(rows, len(requests), tables, batch.lengths[own], schedule))
        return groups

    def attend_latent(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: list[_Group],
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        absorbed, rank = absorb(q, key_up), key_up.shape[2]
        out = q.new_empty(q.shape[0], q.shape[1], rank)
        for rows, batch, tables, lengths, schedule in prepared:
            queries = absorbed[rows].unflatten(0, (batch, -1))
            told = {"softmax_scale": scale, "causal": True}
            attended, _ = self._attend(queries, cache[:, :, None], tables, lengths, rank, schedule, **told)
            out[rows] = attended.flatten(0, 1)
        return lift(out, value_up)
