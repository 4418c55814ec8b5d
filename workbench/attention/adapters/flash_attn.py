"""FlashAttention-2 (`flash_attn.flash_attn_varlen_func`) over pages. Never yet run on hardware.

Pages are given by ``block_table``, so ``k`` and ``v`` are ``[num_blocks, block_size, num_kv_heads, head_dim]``; strides
between pages are free, numbers of a head lie side by side. Pages are multiples of 256 tokens. ``window_size`` counts
the tokens to the left of the query's own. Causal attention is aligned at the last token, as here.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from workbench.attention.interface import AttentionBatch, Heads


def queries_and_mask(batch: AttentionBatch, window: int | None) -> dict[str, Any]:
    """What FlashAttention-2 and -3 call alike."""
    return {
        "cu_seqlens_q": batch.starts,
        "max_seqlen_q": max((end - begin for begin, end in pairwise(batch.query_start)), default=0),
        "causal": True,
        "window_size": (-1, -1) if window is None else (window - 1, 0),
    }


class Adapter:
    name = "flash_attn"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self._attend = import_module("flash_attn").flash_attn_varlen_func

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> dict[str, Any]:
        return queries_and_mask(batch, window) | {
            "cu_seqlens_k": torch.nn.functional.pad(batch.lengths.cumsum(0, dtype=torch.int32), (1, 0)),
            "max_seqlen_k": max(batch.seq_lens, default=0),
            "block_table": batch.block_tables.to(torch.int32),
        }

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: dict[str, Any], scale: float) -> torch.Tensor:
        keys, values = cache.unbind(2)
        out: torch.Tensor = self._attend(q.contiguous(), keys, values, softmax_scale=scale, **prepared)
        return out
