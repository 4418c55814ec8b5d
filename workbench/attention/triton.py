"""Our Triton kernels: keys and values are read where they lie, nothing is gathered.

Where there is no GPU they can be interpreted: slow, for tests and lessons, in a process started with
TRITON_INTERPRET=1, and then with the checker on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.triton.attention_call import refusal_of_heads
from kernels.triton.interpreter import faithful
from kernels.triton.launch import FLOATS, interpreted
from kernels.triton.paged_call import Pages
from kernels.triton.paged_plan import Plan, bounds_for, bounds_of
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    block_tables: torch.Tensor
    plan: Plan


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can."""
    if heads.cache_dtype not in FLOATS:
        return f"a cache of {heads.cache_dtype}, and it takes float16, bfloat16 and float32"
    return refusal_of_heads(heads.head_dim, heads.dtype, heads.device)


class Triton:
    """Reads a batch's tensors only where its lists are empty, as in a recorded step of one query a request."""

    name = "triton"

    def __init__(self, heads: Heads, split_size: int | None = None) -> None:
        """``split_size``: keys of a split, for results whose bits do not depend on the batch; None: for speed."""
        self.capturable = not interpreted()
        self.split_size = split_size
        self.pages = Pages(heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.dtype, heads.device)

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        if batch.seq_lens:
            bounds = bounds_of(batch.query_start, batch.seq_lens, self.pages.group)
        else:
            bounds = bounds_for(1, batch.block_tables.shape[1] * batch.block_size, self.pages.group)
        plan = self.pages.plan(batch.starts, batch.lengths, bounds, window, self.split_size)
        return _Prepared(batch.block_tables, plan)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        from kernels.triton.paged_attention import attend  # imports Triton

        with faithful():
            return attend(q, cache, prepared.block_tables, prepared.plan, scale=scale)
