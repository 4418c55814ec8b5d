"""Requests whose blocks lie scattered over a pool, as they do after a while of serving."""

from __future__ import annotations

from typing import NamedTuple

import torch

from workbench.measure.gpu.scale import Scale

BLOCK = 16


class Requests(NamedTuple):
    """``batch`` requests of ``length`` tokens, whose last ``queries`` ask."""

    batch: int
    length: int
    queries: int = 1

    @property
    def blocks(self) -> int:
        """Of one request."""
        return -(-self.length // BLOCK)

    @property
    def kind(self) -> str:
        return "decode" if self.queries == 1 else f"chunk of {self.queries}"

    @property
    def query_start(self) -> list[int]:
        return [b * self.queries for b in range(self.batch + 1)]

    @property
    def seq_lens(self) -> list[int]:
        return [self.length] * self.batch

    @property
    def scores(self) -> int:
        """Pairs of a query and a key that it sees, of all requests."""
        return self.batch * (self.queries * self.length - self.queries * (self.queries - 1) // 2)

    def tables(self, scale: Scale) -> torch.Tensor:
        """``[batch, blocks]``: a permutation of all blocks of a pool."""
        order = torch.randperm(self.batch * self.blocks, generator=torch.Generator().manual_seed(2))
        return order.view(self.batch, self.blocks).to(scale.device)

    def mask(self, scale: Scale) -> torch.Tensor | None:
        """``[queries, length]``: which keys a query sees; None where there is one, which sees all."""
        if self.queries == 1:
            return None
        own = torch.arange(self.length - self.queries, self.length, device=scale.device)[:, None]
        return torch.arange(self.length, device=scale.device) <= own
