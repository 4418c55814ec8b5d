"""PyTorch's FlexAttention: which query sees which key is a small Python function, from which a kernel is made.

All requests stand in one row, and the mask keeps them apart. On a GPU the kernel is compiled on first use (minutes are
possible); on a CPU the function is carried out as it stands, since compiling it for each new shape would take longer.
"""

from __future__ import annotations

import warnings
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from workbench.attention.gather import Seen, seen_by
from workbench.attention.interface import AttentionBatch


class _Prepared(NamedTuple):
    seen: Seen
    mask: BlockMask


class Flex:
    name = "flex"
    capturable = False

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        device, starts = batch.block_tables.device, batch.query_start
        seen = seen_by(batch, window)
        counts = torch.tensor([end - begin for begin, end in pairwise(starts)], device=device)
        owners = torch.arange(len(counts), device=device).repeat_interleave(counts)
        lengths = torch.tensor(batch.seq_lens, device=device)
        begins = torch.tensor(starts[:-1], device=device)
        own = torch.arange(starts[-1], device=device) - begins[owners] + (lengths - counts)[owners]

        def visible(b: Any, h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            distance = own[query] - seen.positions[key]
            sees = (owners[query] == seen.owners[key]) & (distance >= 0)
            return sees if window is None else sees & (distance < window)

        sizes = (starts[-1], len(seen.slots))
        return _Prepared(seen, create_block_mask(visible, None, None, *sizes, device=device.type))

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        keys, values = (x.transpose(0, 1)[None] for x in prepared.seen.gather(cache, q.dtype))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            attend = _compiled() if q.device.type == "cuda" else flex_attention
            out = attend(q.transpose(0, 1)[None], keys, values, block_mask=prepared.mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)
