"""Our own C++ kernel: keys and values are read where they lie, nothing is gathered."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.cpu.attention import Plan, attend, make_plan, refusal
from kernels.cpu.build import cannot_run
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    block_tables: torch.Tensor
    plan: Plan


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can. Builds the kernel if need be."""
    if heads.device.type != "cpu":
        return f"it runs on CPUs and the model is on {heads.device}"
    return refusal(heads.head_dim, heads.dtype, heads.cache_dtype) or cannot_run()


class Cpu:
    """Reads a batch's ``starts``, ``lengths`` and ``block_tables`` only; their values may change in a recorded step."""

    name = "cpu"
    capturable = True

    def __init__(self, heads: Heads) -> None:
        self.heads = heads

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        num_heads, num_kv_heads, head_dim = self.heads[:3]
        plan = make_plan(batch.starts, batch.lengths, num_heads, num_kv_heads, head_dim, window)
        return _Prepared(batch.block_tables, plan)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        return attend(q, cache, prepared.block_tables, prepared.plan, scale)
