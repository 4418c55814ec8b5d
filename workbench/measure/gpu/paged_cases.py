"""Attention over a paged cache: decode, where reading keys and values is all, and chunks of prompts.

Blocks of a request lie scattered over the pool, as they do after a while of serving. Beside ours stands PyTorch's
attention over the same keys and values gathered beforehand (the gathering is not counted).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import kernels
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale

BLOCK = 16
HEADS = {"qwen2.5-7b": (28, 4, 128), "qwen3-0.6b": (16, 8, 128), "llama-3.1-8b": (32, 8, 128)}


def cases(scale: Scale) -> list[Case]:
    if "triton" not in kernels.available("paged_attention"):
        raise RuntimeError("paged_attention has no Triton kernel in this version")
    if scale.tiny:
        return [_case(scale, "tiny", (4, 2, 16), 2, 20, 1), _case(scale, "tiny", (4, 2, 16), 1, 20, 5)]
    shapes = [("llama-3.1-8b", 1, 32768), ("llama-3.1-8b", 32, 4096), ("llama-3.1-8b", 128, 2048),
              ("qwen2.5-7b", 32, 4096), ("qwen3-0.6b", 32, 4096)]  # fmt: skip
    chunks = [("llama-3.1-8b", 4, 8192, 512)]
    if scale.quick:
        shapes, chunks = shapes[1:2], []
    found = [_case(scale, model, HEADS[model], batch, length, 1) for model, batch, length in shapes]
    return found + [_case(scale, model, HEADS[model], batch, n, queries) for model, batch, n, queries in chunks]


def _case(scale: Scale, model: str, heads: tuple[int, int, int], batch: int, length: int, queries: int) -> Case:
    num_heads, kv_heads, head_dim = heads
    size = 2 if scale.device == "cuda" else 4
    moved = batch * (2 * length * kv_heads + 2 * queries * num_heads) * head_dim * size
    seen = queries * length - queries * (queries - 1) // 2
    kind = "decode" if queries == 1 else f"chunk of {queries}"
    name = f"{kind} {model} {batch} × {length}"
    return Case(
        name, partial(_make, scale, heads, batch, length, queries), 4.0 * batch * seen * num_heads * head_dim, moved
    )


def _make(scale: Scale, heads: tuple[int, int, int], batch: int, length: int, queries: int) -> dict[str, Call]:
    num_heads, kv_heads, head_dim = heads
    each = -(-length // BLOCK)
    q = drawn(batch * queries, num_heads, head_dim, scale=scale)
    pool = drawn(batch * each, BLOCK, 2, kv_heads, head_dim, scale=scale, seed=1)
    order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(2))
    tables = order.view(batch, each).to(scale.device)
    starts = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device=scale.device)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=scale.device)
    scale_by = head_dim**-0.5

    def ours() -> Any:
        return kernels.paged_attention(q, pool, tables, starts, lengths, scale=scale_by, maker="triton")  # type: ignore[arg-type]

    keys, values = pool[tables].view(batch, -1, 2, kv_heads, head_dim)[:, :length].permute(2, 0, 3, 1, 4).contiguous()
    shown = q.view(batch, queries, num_heads, head_dim).transpose(1, 2)
    own = torch.arange(length - queries, length, device=scale.device)[:, None]
    mask = None if queries == 1 else torch.arange(length, device=scale.device) <= own

    def gathered() -> Any:
        return F.scaled_dot_product_attention(shown, keys, values, mask, scale=scale_by, enable_gqa=True)

    return {OURS: ours, "sdpa, gathered before": gathered}
