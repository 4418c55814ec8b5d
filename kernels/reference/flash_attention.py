"""Variable-length attention over contiguous keys and values, with its log-sum-exp, and the merging of partial results.

This is the definition that FlashAttention computes without ever holding the scores. The backward pass is out of scope:
the project serves models and trains none.
"""

from __future__ import annotations

import torch


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of sequences that stand one after the other. Returns ``out`` and ``lse``.

    q ``[total_q, num_heads, head_dim]``, k and v ``[total_k, num_kv_heads, head_dim]``; query heads share KV heads in
    groups of ``num_heads / num_kv_heads``. cu_seqlens ``[batch + 1]`` int32: sequence b owns the rows ``cu[b] …
    cu[b + 1]`` of q and of k and v, and either may be none at all. In Triton that of q must begin at 0 (trusted).

    A score is ``q · k · scale``, with ``softcap`` then ``softcap · tanh(score / softcap)``. Query i of m stands at
    position n − m + i of n keys, so the last query is the last token. With ``causal`` it sees keys up to its position;
    with ``window`` none that lie ``window`` or more before it (the window has no right edge of its own: without
    ``causal`` all later keys are seen). ``sinks`` ``[num_heads]`` float32: one more score for each head, whose value
    is zero; it is counted once and belongs to the sum.

    out: the shape and type of q. lse ``[total_q, num_heads]`` float32 (float64 of float64): the natural logarithm of
    the sum of ``exp(score)``, the sink included. A query that sees no key has out 0, and lse −inf or its sink. Keys and
    values that no query of their sequence sees are not read, whatever they hold.
    """
    num_heads = q.shape[1]
    exact = torch.promote_types(q.dtype, torch.float32)
    group = num_heads // k.shape[1]
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:2], dtype=exact, device=q.device)
    rows, columns = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(rows) - 1):
        queries, keys = slice(rows[b], rows[b + 1]), slice(columns[b], columns[b + 1])
        visible = _visible(rows[b + 1] - rows[b], columns[b + 1] - columns[b], causal, window, q.device)
        seen = visible.any(0)[:, None, None]
        key = k[keys].where(seen, 0).repeat_interleave(group, 1)
        value = v[keys].where(seen, 0).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[queries], key).to(exact) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(exact)[:, None, None].expand(-1, scores.shape[1], 1)], 2)
        weights = scores.softmax(-1)[..., : visible.shape[1]].masked_fill(~visible, 0).to(q.dtype)
        out[queries] = torch.einsum("hqk,khd->qhd", weights, value)
        lse[queries] = scores.logsumexp(-1).T
    return out, lse


def _visible(num_queries: int, num_keys: int, causal: bool, window: int | None, device: torch.device) -> torch.Tensor:
    """``[num_queries, num_keys]``: which keys each query sees."""
    own = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    if causal:
        visible &= keys <= own
    if window is not None:
        visible &= keys > own - window
    return visible


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over two sets of keys from the results over each: ``out`` and ``lse`` of their union.

    out ``[num_tokens, num_heads, head_dim]``, lse ``[num_tokens, num_heads]`` as `flash_attention` gives them (natural
    logarithm); the result has the type of ``out_a``. It is the mean of both outs, weighted by ``exp(lse)``. A state
    whose lse is −inf is empty and the identity: its out is not looked at, and two empty states make an empty one. Where
    there are sinks, only one of the two may have counted them.
    """
    exact = torch.promote_types(out_a.dtype, torch.float32)
    top = torch.maximum(lse_a, lse_b)
    top = top.where(top > float("-inf"), 0)
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    a = out_a.to(exact).where((weight_a > 0)[..., None], 0)
    b = out_b.to(exact).where((weight_b > 0)[..., None], 0)
    out = (weight_a[..., None] * a + weight_b[..., None] * b) / total.where(total > 0, 1)[..., None]
    return out.to(out_a.dtype), top + torch.log(total)
