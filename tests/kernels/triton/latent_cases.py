"""Batches over a paged cache of latents: scattered pages amid NaN, garbage behind the valid part of block tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from kernels import reference
from kernels.triton.latent_attention import attend_latents
from kernels.triton.latent_call import plan_for
from tests.kernels.triton.paged_cases import GARBAGE, SPLITS
from tests.kernels.triton.rules import agrees

NAN = float("nan")


@dataclass
class Latents:
    """``lengths``: (queries, keys) of each request."""

    lengths: list[tuple[int, int]]
    heads: int = 4
    rank: int = 32
    rope: int = 8
    dtype: torch.dtype = torch.float32
    page: int = 16
    layout: str = "plain"
    table_dtype: torch.dtype = torch.int64
    cache_dtype: torch.dtype | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        width = self.rank + self.rope
        needed = [-(-n // self.page) for _, n in self.lengths]
        order = torch.randperm(sum(needed) + 2, generator=draw).tolist()
        self.used = [[order.pop() for _ in range(count)] for count in needed]
        self.cache = self._room(self.cache_dtype or self.dtype, sum(needed) + 2, self.page, width)
        for pages, (_, n) in zip(self.used, self.lengths, strict=True):
            for i, row in enumerate(torch.randn(n, width, generator=draw)):
                self.cache[pages[i // self.page], i % self.page] = row
        self.starts = [0, *accumulate(m for m, _ in self.lengths)]
        self.keys = [n for _, n in self.lengths]
        self.q = self._room(self.dtype, self.starts[-1], self.heads, width)
        self.q.copy_(torch.randn(self.q.shape, generator=draw))
        table = [blocks + [GARBAGE] * (max(*needed, 1) + 2 - len(blocks)) for blocks in self.used]
        self.tables = torch.tensor(table, dtype=self.table_dtype, device=self.device)
        self.scale = width**-0.5

    def _room(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """NaN only; as a "slice" amid more of it, whose rows begin at multiples of 16 bytes."""
        if self.layout == "plain":
            return torch.full(shape, NAN, dtype=dtype, device=self.device)
        wider = [shape[0] + 2, shape[1] + 1, shape[2] + 16]
        return torch.full(wider, NAN, dtype=dtype, device=self.device)[1:-1, :-1, 8:-8]

    def run(self, splits: str = "one", on_device: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and its log-sum-exp. ``on_device``: lengths are tensors, whose values the host does not know."""
        starts, keys = self.starts, self.keys
        if on_device:
            starts, keys = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in (starts, keys))
        plan = plan_for(self.q, self.cache, self.tables, starts, keys, rank=self.rank, **SPLITS[splits])
        lse = torch.full(self.q.shape[:2], NAN, device=self.device)
        out = attend_latents(self.q, self.cache, self.tables, plan, rank=self.rank, scale=self.scale, lse=lse)
        return out, lse

    def expected(self, dtype: torch.dtype) -> torch.Tensor:
        """By the definition, computed in ``dtype``."""
        cache = self.cache.to(self.dtype).to(dtype)
        paged = (cache, self.tables, self.starts, self.keys)
        return reference.paged_latent_attention(self.q.to(dtype), *paged, rank=self.rank, scale=self.scale)

    def expected_lse(self) -> torch.Tensor:
        """Query by query in float64."""
        found = torch.full(self.q.shape[:2], float("-inf"), dtype=torch.float64)
        for b, (m, n) in enumerate(self.lengths):
            for i in range(m):
                rows = range(max(0, n - m + i + 1))
                if rows:
                    seen = torch.stack([self.cache[self.used[b][r // self.page], r % self.page] for r in rows])
                    scores = self.q[self.starts[b] + i].double() @ seen.to(self.dtype).double().T
                    found[self.starts[b] + i] = torch.logsumexp(scores * self.scale, -1).cpu()
        return found

    def check(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Twice the definition's error at most (`rules.agrees`); what sees nothing has 0 and −inf exactly."""
        exact_lse = self.expected_lse()
        hidden = exact_lse == float("-inf")
        assert torch.equal(lse.cpu() == float("-inf"), hidden) and not out.cpu()[hidden].any()
        agrees(out, self.expected(self.dtype), self.expected(torch.float64))
        torch.testing.assert_close(lse.cpu()[~hidden].double(), exact_lse[~hidden], atol=1e-5, rtol=1e-5)
