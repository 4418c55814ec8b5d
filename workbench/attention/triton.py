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
from workbench.attention.gather import Seen, seen_by
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    seen: Seen
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
        seen = seen_by(batch, window)
        key_start = torch.tensor([0, *accumulate(seen.counts)], dtype=torch.int32, device=seen.slots.device)
        return _Prepared(seen, batch.starts, key_start, window)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        seen, query_start, key_start, window = prepared
        keys, values = seen.gather(cache, q.dtype)
        with faithful():
            out, _ = kernels.flash_attention(
                q, keys, values, query_start, key_start, scale=scale, window=window, maker="triton"
            )
        return out
