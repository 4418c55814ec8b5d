"""Our Triton kernels: keys and values are read where they lie, nothing is gathered.

Where there is no GPU they can be interpreted: slow, for tests and lessons, in a process started with
TRITON_INTERPRET=1, and then with the checker on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.reference import absorb, lift
from kernels.triton.attention_call import refusal_of_heads
from kernels.triton.interpreter import faithful
from kernels.triton.latent_call import Latents, refusal_of_widths
from kernels.triton.launch import FLOATS, interpreted
from kernels.triton.paged_call import Pages, plan_of
from kernels.triton.paged_plan import Plan, bounds_for, bounds_of
from workbench.attention.interface import AttentionBatch, Heads
from workbench.attention.latent_requests import Requests, apart

if TYPE_CHECKING:
    from kernels.triton.cascade import CascadePlan, SharedHead


class _Prepared(NamedTuple):
    block_tables: torch.Tensor
    plan: Plan | CascadePlan


class _Latent(NamedTuple):
    """A step of latent attention."""

    rows: torch.Tensor | None
    """Those of q that are absorbed; None: all"""
    absorbed: _Prepared | None
    expanded: Requests | None


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can."""
    if heads.cache_dtype not in FLOATS:
        return f"a cache of {heads.cache_dtype}, and it takes float16, bfloat16 and float32"
    width, latent = heads.head_dim, heads.latent
    if latent is not None:
        if reason := refusal_of_widths(latent.kv_lora_rank, latent.qk_rope_head_dim):
            return reason
        width = max(latent.query_dim, latent.v_head_dim)
    return refusal_of_heads(width, heads.dtype, heads.device)


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
        self.latent = heads.latent
        if heads.latent is None:
            self.pages = Pages(heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.dtype, heads.device)
        else:
            self.pages = Latents(heads.num_heads, 1, heads.latent.kv_lora_rank, heads.dtype, heads.device)

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared | _Latent:
        if self.latent is not None and batch.seq_lens:
            absorbed, expanded = apart(batch, self.latent)
            if absorbed is None:
                return _Latent(None, None, expanded)
            rows, tables, starts, lengths = absorbed
            plan = plan_of(self.pages, len(rows), 0, starts, lengths, split_size=self.split_size)
            return _Latent(rows, _Prepared(tables, plan), expanded)
        if batch.shared and window is None:
            from kernels.triton.cascade import cascade_plan  # imports Triton

            lists = (batch.query_start, batch.seq_lens, batch.shared)
            shared = cascade_plan(self.pages, batch.block_tables, batch.block_size, *lists)
            return _Prepared(batch.block_tables, shared)
        if batch.seq_lens:
            bounds = bounds_of(batch.query_start, batch.seq_lens, self.pages.group)
        else:
            bounds = bounds_for(1, batch.block_tables.shape[1] * batch.block_size, self.pages.group)
        plan = self.pages.plan(batch.starts, batch.lengths, bounds, window, self.split_size)
        prepared = _Prepared(batch.block_tables, plan)
        return prepared if self.latent is None else _Latent(None, prepared, None)

    def shared_heads(
        self, tables: Sequence[Sequence[int]], query_start: Sequence[int], seq_lens: Sequence[int], block_size: int
    ) -> Sequence[SharedHead]:
        """The heads of a batch, by its block tables as the host knows them, that are to be attended once; without
        ``cascade`` none, nor where it would not pay."""
        if not self.cascade:
            return ()
        from kernels.triton.cascade import shared_heads  # imports Triton

        return shared_heads(tables, query_start, seq_lens, block_size)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        with faithful():
            if isinstance(prepared.plan, Plan):
                from kernels.triton.paged_attention import attend  # imports Triton

                return attend(q, cache, prepared.block_tables, prepared.plan, scale=scale)
            from kernels.triton.cascade import cascade

            return cascade(q, cache, prepared.plan, scale=scale)

    def attend_latent(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: _Latent,
        key_up: torch.Tensor,
        value_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        from kernels.triton.expanded_latent import expanded_latent_attention  # imports Triton
        from kernels.triton.latent_attention import attend_latents

        out = q.new_empty(q.shape[0], q.shape[1], value_up.shape[1])
        with faithful():
            if prepared.absorbed is not None:
                tables, plan = prepared.absorbed
                own = slice(None) if prepared.rows is None else prepared.rows
                attended = attend_latents(
                    absorb(q[own], key_up), cache, tables, plan, rank=key_up.shape[2], scale=scale
                )
                out[own] = lift(attended, value_up)
            if prepared.expanded is not None:
                rows, *paged = prepared.expanded
                out[rows] = expanded_latent_attention(q[rows], cache, *paged, key_up, value_up, scale=scale)
        return out
