"""FlashInfer (`BatchPrefillWithPagedKVCacheWrapper`) over pages of any size. Never yet run on hardware.

``plan`` lays out a step's work once, on the processor; ``run`` is called in each layer. Pages are named as a CSR
matrix: ``indptr`` over the pages of all requests, ``indices`` the pages, ``last_page_len`` how full each last one is.
The cache is a pair of ``[num_blocks, block_size, num_kv_heads, head_dim]`` (layout NHD). ``window_left`` counts the
tokens to the left of the query's own, −1: all. Decodes are chunks of one query, so that a mixed batch is one launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from typing import Any

import torch

from workbench.attention.interface import AttentionBatch, Heads

WORKSPACE_BYTES = 128 * 1024 * 1024
"""What the library's documentation takes."""


@dataclass
class _Prepared:
    window: int | None
    pages: tuple[torch.Tensor, ...]
    block_size: int
    planned: set[float] = field(default_factory=set)
    """For which scale: `attend` is the first to know it, and it is the same in all layers."""


class Adapter:
    name = "flashinfer"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self._open = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self.heads = heads
        self._wrappers: dict[int | None, Any] = {}
        """By window: a wrapper keeps the plan of one kind of layer."""

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        size, device = batch.block_size, batch.block_tables.device
        counts = [-(-length // size) for length in batch.seq_lens]
        indptr = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
        last = torch.tensor([(n - 1) % size + 1 if n else 0 for n in batch.seq_lens], dtype=torch.int32)
        used = torch.arange(batch.block_tables.shape[1], device=device) < torch.tensor(counts, device=device)[:, None]
        indices = batch.block_tables[used].to(torch.int32)
        starts = torch.tensor(batch.query_start, dtype=torch.int32)
        return _Prepared(window, (starts, indptr, indices, last), size)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        window, heads = prepared.window, self.heads
        if window not in self._wrappers:
            workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
            self._wrappers[window] = self._open(workspace, "NHD")
        wrapper = self._wrappers[window]
        if scale not in prepared.planned:
            shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim, prepared.block_size)
            left = -1 if window is None else window - 1
            types = {"q_data_type": q.dtype, "kv_data_type": cache.dtype}
            wrapper.plan(*prepared.pages, *shape, causal=True, sm_scale=scale, window_left=left, **types)
            prepared.planned = {scale}
        out: torch.Tensor = wrapper.run(q.contiguous(), cache.unbind(2))
        return out
