"""xFormers (`memory_efficient_attention_forward`) over gathered keys and values. Never yet run on hardware.

All requests stand in one row; a block-diagonal mask, causal from its bottom right corner, keeps them apart. Grouped
heads are five axes: ``[1, tokens, num_kv_heads, group, head_dim]``, keys and values repeated over the group without a
copy. A local mask counts the query's own token: a window of w sees w tokens.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from workbench.attention.gather import Seen, seen_by
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    seen: Seen
    mask: Any


class Adapter:
    name = "xformers"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self._attend = import_module("xformers.ops").memory_efficient_attention_forward
        masks = import_module("xformers.ops.fmha.attn_bias")
        self._mask = masks.BlockDiagonalCausalFromBottomRightMask
        self.device = heads.device

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        seen, starts = seen_by(batch, window), batch.query_start
        counts = [end - begin for begin, end in pairwise(starts)]
        mask = self._mask.from_seqlens(q_seqlen=counts, kv_seqlen=seen.counts, device=self.device)
        if window is not None:
            mask = mask.make_local_attention_from_bottomright(window)
        return _Prepared(seen, mask)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        tokens, num_heads, head_dim = q.shape
        num_kv_heads = cache.shape[3]
        group = num_heads // num_kv_heads
        queries = q.reshape(1, tokens, num_kv_heads, group, head_dim)
        keys, values = (x[None, :, :, None].expand(-1, -1, -1, group, -1) for x in prepared.seen.gather(cache, q.dtype))
        out: torch.Tensor = self._attend(queries, keys, values, attn_bias=prepared.mask, scale=scale)
        return out.reshape(q.shape)
