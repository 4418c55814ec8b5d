"""FlashAttention-3 (`flash_attn_interface.flash_attn_with_kvcache`) over pages of any size. Never yet run on hardware.

``k_cache`` and ``v_cache`` are ``[num_blocks, block_size, num_kv_heads, head_dim]`` with numbers of a head side by
side, ``page_table`` and ``cache_seqlens`` int32. Nothing is appended: keys and values of this step are in the cache
already. ``window_size`` counts the tokens to the left of the query's own. The number of splits is the library's choice.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from workbench.attention.adapters.flash_attn import queries_and_mask
from workbench.attention.interface import AttentionBatch, Heads


class Adapter:
    name = "fa3"
    capturable = False

    def __init__(self, heads: Heads) -> None:
        self._attend = import_module("flash_attn_interface").flash_attn_with_kvcache

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> dict[str, Any]:
        return queries_and_mask(batch, window) | {
            "cache_seqlens": batch.lengths,
            "page_table": batch.block_tables.to(torch.int32),
        }

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: dict[str, Any], scale: float) -> torch.Tensor:
        keys, values = cache.unbind(2)
        out: torch.Tensor = self._attend(q.contiguous(), keys, values, softmax_scale=scale, **prepared)
        return out
