"""Multi-head latent attention (MLA) at DeepSeek's shapes: absorbed over a paged cache of latents, and expanded.

A decode of DeepSeek-V3, 128 heads, computes nearly as much for each byte as an H100 can; one of V2-Lite, 16 heads,
waits for memory. Plans, queries (`kernels.reference.absorb`) and torch's gathered latents are made before. Of the
kernels of `scaled_dot_product_attention` only the plainest takes heads of 576, so torch's way is two products and a
softmax. Expanded, both makers gather and rebuild keys and values, and that is counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import kernels
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.scattered import BLOCK, Requests


class Widths(NamedTuple):
    heads: int
    rank: int
    rope: int
    nope: int
    value: int


MODELS = {
    "deepseek-v3": Widths(128, 512, 64, 128, 128),
    "deepseek-v2-lite": Widths(16, 512, 64, 128, 128),
    "tiny": Widths(3, 32, 8, 12, 10),
}
DECODES = [("deepseek-v3", 32, 4096), ("deepseek-v2-lite", 32, 4096), ("deepseek-v3", 128, 8192),
           ("deepseek-v3", 1, 32768), ("deepseek-v2-lite", 128, 8192), ("deepseek-v2-lite", 1, 32768)]  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    if "triton" not in kernels.available("paged_latent_attention"):
        raise RuntimeError("paged_latent_attention has no Triton kernel in this version")
    if scale.tiny:
        return [_absorbed(scale, "tiny", 2, 20), _absorbed(scale, "tiny", 1, 20, 5), _expanded(scale, "tiny", 2, 20)]
    if scale.quick:
        return [_absorbed(scale, *shape) for shape in DECODES[:2]]
    found = [_absorbed(scale, *shape) for shape in DECODES]
    return [*found, _absorbed(scale, "deepseek-v3", 4, 8192, 64), _expanded(scale, "deepseek-v3", 2, 4096)]


def _absorbed(scale: Scale, model: str, batch: int, length: int, queries: int = 1) -> Case:
    """Bytes: each latent once, each query and each weighted sum."""
    widths, requests = MODELS[model], Requests(batch, length, queries)
    wide = widths.rank + widths.rope
    numbers = batch * length * wide + batch * queries * widths.heads * (wide + widths.rank)
    return Case(
        f"latent {requests.kind} {model} {batch} × {length}",
        partial(_make_absorbed, scale, widths, requests),
        flops=2.0 * requests.scores * widths.heads * (wide + widths.rank),
        bytes=numbers * (2 if scale.device == "cuda" else 4),
    )


def _make_absorbed(scale: Scale, widths: Widths, requests: Requests) -> dict[str, Call]:
    from kernels.triton.latent_attention import attend_latents
    from kernels.triton.latent_call import plan_for

    heads, rank, rope, nope, _ = widths
    batch, length, queries = requests
    q = drawn(batch * queries, heads, rank + rope, scale=scale)
    pool = drawn(batch * requests.blocks, BLOCK, rank + rope, scale=scale, seed=1)
    tables, scale_by = requests.tables(scale), (nope + rope) ** -0.5
    plan = plan_for(q, pool, tables, requests.query_start, requests.seq_lens, rank=rank)
    latents = pool[tables].view(batch, -1, rank + rope)[:, :length].contiguous()
    mask = requests.mask(scale)
    hidden = None if mask is None else ~mask[:, None].expand(-1, heads, -1).reshape(queries * heads, length)
    shown = q.view(batch, queries * heads, rank + rope)  # all heads of a request see the same rows

    def torchs() -> Any:
        scores = torch.matmul(shown * scale_by, latents.transpose(1, 2))
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        return torch.matmul(scores.softmax(-1), latents[..., :rank])

    return {
        OURS: lambda: attend_latents(q, pool, tables, plan, rank=rank, scale=scale_by),
        "torch matmul, gathered before": torchs,
    }


def _expanded(scale: Scale, model: str, batch: int, length: int) -> Case:
    """Whole prompts."""
    widths, requests = MODELS[model], Requests(batch, length, length)
    keys_and_values = widths.nope + widths.rope + widths.value
    rebuilt = batch * length * widths.rank * (widths.nope + widths.value)
    return Case(
        f"latent prefill {model} {batch} × {length}",
        partial(_make_expanded, scale, widths, requests),
        flops=2.0 * widths.heads * (requests.scores * keys_and_values + rebuilt),
    )


def _make_expanded(scale: Scale, widths: Widths, requests: Requests) -> dict[str, Call]:
    heads, rank, rope, nope, value = widths
    batch, length, _ = requests
    q = drawn(batch * length, heads, nope + rope, scale=scale)
    pool = drawn(batch * requests.blocks, BLOCK, rank + rope, scale=scale, seed=1)
    key_up, value_up = (
        drawn(heads, width, rank, scale=scale, seed=2 + n) * rank**-0.5 for n, width in enumerate((nope, value))
    )
    tables, scale_by = requests.tables(scale), (nope + rope) ** -0.5
    given = (q, pool, tables, requests.query_start, requests.seq_lens, key_up, value_up)
    shown = q.view(batch, length, heads, nope + rope).transpose(1, 2)

    def torchs() -> Any:
        latents, rotated = pool[tables].view(batch, -1, rank + rope)[:, :length].split((rank, rope), -1)
        keys = torch.einsum("bnr,hdr->bhnd", latents, key_up)
        keys = torch.cat((keys, rotated[:, None].expand(-1, heads, -1, -1)), -1)
        values = torch.einsum("bnr,hvr->bhnv", latents, value_up)
        return F.scaled_dot_product_attention(shown, keys, values, is_causal=True, scale=scale_by)

    return {
        OURS: lambda: kernels.expanded_latent_attention(*given, scale=scale_by, maker="triton"),
        "torch, rebuilt for sdpa": torchs,
    }
