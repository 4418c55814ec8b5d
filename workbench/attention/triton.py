"""Our Triton kernel: FlashAttention over gathered keys and values, one launch for the whole batch.

Until a Triton kernel reads pages where they lie, keys and values are gathered through the block tables into one row of
all requests, those only that a query may see. Where there is no GPU the kernel can be interpreted: slow, for tests and
lessons, in a process started with TRITON_INTERPRET=1, and then with the checker on.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch

import kernels
from kernels.triton.attention_call import refusal_of_heads
from kernels.triton.interpreter import faithful
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    slots: torch.Tensor  # [total_k] int64
    query_start: torch.Tensor  # [batch + 1] int32
    key_start: torch.Tensor  # [batch + 1] int32
    window: int | None


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can."""
    return refusal_of_heads(heads.head_dim, heads.dtype, heads.device)


class Triton:
    name = "triton"
    capturable = False

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        device, starts, lengths = batch.block_tables.device, batch.query_start, batch.seq_lens
        # Causal attention is aligned at the last token, so leaving out a request's first keys moves nothing.
        firsts = [0] * len(lengths)
        if window is not None:
            firsts = [max(0, n - (starts[b + 1] - starts[b]) - window + 1) for b, n in enumerate(lengths)]
        counts = [n - first for n, first in zip(lengths, firsts, strict=True)]
        owners = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(counts, device=device))
        ranges = [torch.arange(first, n, device=device) for first, n in zip(firsts, lengths, strict=True)]
        positions = torch.cat(ranges)
        blocks = batch.block_tables[owners, positions // batch.block_size]
        slots = blocks * batch.block_size + positions % batch.block_size
        key_start = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
        return _Prepared(slots, batch.starts, key_start, window)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        slots, query_start, key_start, window = prepared
        keys, values = cache.flatten(0, 1).index_select(0, slots).to(q.dtype).unbind(1)
        with faithful():
            out, _ = kernels.flash_attention(
                q, keys, values, query_start, key_start, scale=scale, window=window, maker="triton"
            )
        return out
