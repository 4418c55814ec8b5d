"""Batches whose keys and values lie in scattered pages amid NaN, with garbage behind the valid part of block tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.triton.paged_attention import attend
from kernels.triton.paged_call import plan_for
from tests.kernels.triton.attention_cases import NAN, Case

GARBAGE = 2147480000
"""What stands in a block table behind a request's last page."""
SPLITS: dict[str, dict[str, int]] = {
    "one": {},
    "even": {"num_sms": 132},
    "fixed": {"split_size": 64},
    "fixed, longer": {"split_size": 192},
}


@dataclass
class Paged(Case):
    """A `Case` whose keys and values are written to pages of ``page`` tokens."""

    page: int = 16
    table_dtype: torch.dtype = torch.int64
    cache_dtype: torch.dtype | None = None
    """None: that of queries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = [-(-n // self.page) for _, n in self.lengths]
        order = torch.randperm(sum(needed) + 2, generator=self.draw).tolist()
        own = [[order.pop() for _ in range(count)] for count in needed]
        self.used = own
        _, k, v, _, starts = self.inputs
        self.cache = self._room(sum(needed) + 2)
        for b, (_, n) in enumerate(self.lengths):
            for i in range(n):
                token = int(starts[b]) + i
                self.cache[own[b][i // self.page], i % self.page] = torch.stack([k[token], v[token]])
        if self.cache_dtype is not None:  # what is attended is what was stored
            stored = (x.copy_(x.to(self.cache_dtype)) for x in (k, v))
            self.inputs = (self.inputs[0], *stored, *self.inputs[3:])
        width = max(*needed, 1) + 2
        table = [blocks + [GARBAGE] * (width - len(blocks)) for blocks in own]
        self.tables = torch.tensor(table, dtype=self.table_dtype, device=self.device)

    def _room(self, pages: int) -> torch.Tensor:
        """A cache that holds NaN only: whole, or a slice of a larger one in every dimension but that of K and V."""
        shape = [pages, self.page, 2, self.kv_heads, self.head_dim]
        dtype = self.cache_dtype or self.dtype
        if self.layout == "plain":
            return torch.full(shape, NAN, dtype=dtype, device=self.device)
        wider = [pages + 2, self.page + 1, 2, self.kv_heads + 2, self.head_dim + 16]
        return torch.full(wider, NAN, dtype=dtype, device=self.device)[1:-1, :-1, :, 1:-1, 8:-8]

    @property
    def lists(self) -> tuple[list[int], list[int]]:
        return self.inputs[3].tolist(), [n for _, n in self.lengths]

    def run(self, splits: str = "one", on_device: bool = False, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """``on_device``: lengths are given as tensors, whose values the host does not know."""
        starts, lengths = self.lists
        if on_device:
            starts, lengths = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in (starts, lengths))
        q = self.inputs[0]
        plan = plan_for(q, self.cache, self.tables, starts, lengths, window=self.window, **SPLITS[splits])
        options = {name: value for name, value in self.options.items() if name != "window"}
        lse = torch.full(q.shape[:2], NAN, device=self.device)
        return attend(q, self.cache, self.tables, plan, lse=lse, **options | more), lse
