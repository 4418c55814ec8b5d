"""Our own C++ kernel: keys and values are read where they lie, nothing is gathered."""

from __future__ import annotations

from typing import NamedTuple

import torch

import kernels
from kernels.cpu.attention import refusal
from kernels.cpu.build import cannot_run
from workbench.attention.interface import AttentionBatch, Heads


class _Prepared(NamedTuple):
    block_tables: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    window: int | None


def why_not(heads: Heads) -> str:
    """Why this backend cannot serve such heads on this machine; empty if it can. Builds the kernel if need be."""
    if heads.device.type != "cpu":
        return f"it runs on CPUs and the model is on {heads.device}"
    return refusal(heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.dtype, heads.dtype) or cannot_run()


class Cpu:
    name = "cpu"

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        starts, lengths = (torch.tensor(numbers, dtype=torch.int32) for numbers in (batch.query_start, batch.seq_lens))
        return _Prepared(batch.block_tables, starts, lengths, window)

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        tables, starts, lengths, window = prepared
        return kernels.paged_attention(q, cache, tables, starts, lengths, scale=scale, window=window, maker="cpu")
