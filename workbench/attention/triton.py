"""Our Triton kernels: keys and values are read where they lie, nothing is gathered.

Where there is no GPU they can be interpreted: slow, for tests and lessons, in a process started with
TRITON_INTERPRET=1, and then with the checker on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.triton.attention_call import refusal_of_heads
from kernels.triton.interpreter import faithful
from kernels.triton.launch import FLOATS, interpreted
from kernels.triton.paged_call import Pages
from kernels.triton.paged_plan import Plan, bounds_for, bounds_of
from workbench.attention.interface import AttentionBatch, Heads

if TYPE_CHECKING:
    from kernels.triton.cascade import CascadePlan


class _Prepared(NamedTuple):
    block_tables: torch.Tensor
    plan: Plan | CascadePlan


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can."""
    if heads.cache_dtype not in FLOATS:
        return f"a cache of {heads.cache_dtype}, and it takes float16, bfloat16 and float32"
    return refusal_of_heads(heads.head_dim, heads.dtype, heads.device)


class Triton:
    """Reads a batch's tensors only where its lists are empty, as in a recorded step of one query a request."""

    name = "triton"

    def __init__(self, heads: Heads, split_size: int | None = None, cascade: bool = False) -> None:
        """``split_size``: keys of a split, for results whose bits do not depend on the batch; None: for speed.

        ``cascade``: whether a head that several requests share is attended once. Who shares is seen in the block tables
        of each step, so no step can be recorded; layers with a window go without. Not together with a split size, whose
        promise it breaks: raises ValueError.
        """
        if cascade and split_size is not None:
            raise ValueError(f"split_size={split_size} promises the same bits in any batch, and cascade breaks that")
        self.capturable = not (interpreted() or cascade)
        self.split_size = split_size
        self.cascade = cascade
        self.pages = Pages(heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.dtype, heads.device)

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        if self.cascade and window is None and (shared := self._cascade_plan(batch)) is not None:
            return _Prepared(batch.block_tables, shared)
        if batch.seq_lens:
            bounds = bounds_of(batch.query_start, batch.seq_lens, self.pages.group)
        else:
            bounds = bounds_for(1, batch.block_tables.shape[1] * batch.block_size, self.pages.group)
        plan = self.pages.plan(batch.starts, batch.lengths, bounds, window, self.split_size)
        return _Prepared(batch.block_tables, plan)

    def _cascade_plan(self, batch: AttentionBatch) -> CascadePlan | None:
        """None where no head is shared that would pay."""
        from kernels.triton.cascade import cascade_plan, shared_heads  # imports Triton

        starts, lengths = batch.query_start, batch.seq_lens
        shared = shared_heads(batch.host_tables, starts, lengths, batch.block_size)
        if not shared:
            return None
        return cascade_plan(self.pages, batch.block_tables, batch.block_size, starts, lengths, shared)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        with faithful():
            if isinstance(prepared.plan, Plan):
                from kernels.triton.paged_attention import attend  # imports Triton

                return attend(q, cache, prepared.block_tables, prepared.plan, scale=scale)
            from kernels.triton.cascade import cascade

            return cascade(q, cache, prepared.plan, scale=scale)
