"""Attention over a paged cache: decode, where reading keys and values is all, and chunks of prompts.

Our plan of a batch is made before, as an engine makes it once a step for all layers. Beside ours stands PyTorch's
attention over the same keys and values gathered before; neither the plan nor the gathering is counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F

import kernels
from workbench.measure.gpu.attention_cases import flex_attention
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.scattered import BLOCK, Requests

HEADS = {
    **{"qwen2.5-7b": (28, 4, 128), "qwen3-0.6b": (16, 8, 128)},
    **{"llama-3.1-8b": (32, 8, 128), "llama-3.1-70b": (64, 8, 128), "tiny": (4, 2, 16)},
}
"""By model: query heads, KV heads, head size."""
GRID = [(32, 4096), (128, 8192), (1, 32768), (32, 32768), (8, 8192), (128, 1024), (32, 1024), (1, 1024)]
"""Batches and contexts of decodes, what matters most first."""
FLEX = ((32, 4096),)
"""FlexAttention is compiled for each shape for many seconds: one stands for all."""
SHARED = (64, 8192, 512)
"""Requests that begin with the same tokens, how many those are, and how many each has of its own."""


def cases(scale: Scale) -> list[Case]:
    if "triton" not in kernels.available("paged_attention"):
        raise RuntimeError("paged_attention has no Triton kernel in this version")
    if scale.tiny:
        return [_case(scale, "tiny", 2, 20), _case(scale, "tiny", 1, 20, 5), _shared(scale, "tiny", 4, 32, 5)]
    if scale.quick:
        return [_case(scale, "llama-3.1-8b", *GRID[0])]
    found = [_case(scale, "llama-3.1-8b", *shape) for shape in GRID]
    found += [_case(scale, model, *GRID[0]) for model in ("llama-3.1-70b", "qwen2.5-7b", "qwen3-0.6b")]
    return [*found, _case(scale, "llama-3.1-8b", 4, 8192, 512), _shared(scale, "llama-3.1-8b", *SHARED)]


def _case(scale: Scale, model: str, batch: int, length: int, queries: int = 1) -> Case:
    num_heads, _, head_dim = HEADS[model]
    requests = Requests(batch, length, queries)
    return Case(
        f"{requests.kind} {model} {batch} × {length}",
        partial(_make, scale, HEADS[model], requests, None),
        flops=4.0 * requests.scores * num_heads * head_dim,
        bytes=_moved(scale, HEADS[model], batch * length, batch * queries),
    )


def _shared(scale: Scale, model: str, batch: int, head: int, own: int) -> Case:
    """Decodes of requests that share a head: once is enough to read it."""
    num_heads, _, head_dim = HEADS[model]
    requests = Requests(batch, head + own)
    return Case(
        f"shared head {model} {batch} × ({head} + {own})",
        partial(_make, scale, HEADS[model], requests, head // BLOCK),
        flops=4.0 * requests.scores * num_heads * head_dim,
        bytes=_moved(scale, HEADS[model], head + batch * own, batch),
    )


def _moved(scale: Scale, heads: tuple[int, int, int], keys: int, queries: int) -> int:
    num_heads, kv_heads, head_dim = heads
    return (2 * keys * kv_heads + 2 * queries * num_heads) * head_dim * (2 if scale.device == "cuda" else 4)


def _make(scale: Scale, heads: tuple[int, int, int], requests: Requests, shared: int | None) -> dict[str, Call]:
    """``shared``: blocks of the head that all requests share; None: none does."""
    from kernels.triton.cascade import SharedHead, cascade, cascade_plan
    from kernels.triton.paged_attention import attend
    from kernels.triton.paged_call import Pages, plan_for

    num_heads, kv_heads, head_dim = heads
    batch, length, queries = requests
    q = drawn(batch * queries, num_heads, head_dim, scale=scale)
    pool = drawn(batch * requests.blocks, BLOCK, 2, kv_heads, head_dim, scale=scale, seed=1)
    tables, lists, scale_by = requests.tables(scale), (requests.query_start, requests.seq_lens), head_dim**-0.5
    if shared is not None:
        tables[:, :shared] = tables[0, :shared]
    plan = plan_for(q, pool, tables, *lists)
    found: dict[str, Call] = {OURS: lambda: attend(q, pool, tables, plan, scale=scale_by)}
    if shared is not None:
        pages = Pages(num_heads, kv_heads, head_dim, q.dtype, q.device)
        once = cascade_plan(pages, tables, BLOCK, *lists, [SharedHead(tuple(range(batch)), shared)])
        found = {OURS: lambda: cascade(q, pool, once, scale=scale_by), f"{OURS}, not cascade": found[OURS]}
    keys, values = pool[tables].view(batch, -1, 2, kv_heads, head_dim)[:, :length].permute(2, 0, 3, 1, 4).contiguous()
    shown, mask = q.view(batch, queries, num_heads, head_dim).transpose(1, 2), requests.mask(scale)

    def sdpa() -> Any:
        return F.scaled_dot_product_attention(shown, keys, values, mask, scale=scale_by, enable_gqa=True)

    def flex() -> Any:
        return flex_attention(scale.device == "cuda")(shown, keys, values, scale=scale_by, enable_gqa=True)

    found["sdpa, gathered before"] = sdpa
    if (batch, length) in FLEX or (scale.tiny and mask is None):
        found["flex, gathered before"] = flex
    return found
