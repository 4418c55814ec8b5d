"""Paged attention by plain gather: the specification that every faster maker must agree with.

The cache of one layer is ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``, keys at index 0 and values at 1, so
one token's keys and values lie side by side and are written and gathered as one row. Token i of a request lies in block
``block_table[i // block_size]`` at row ``i % block_size``; ``slot = block · block_size + row`` numbers all rows.
"""

from __future__ import annotations

import torch


def write_kv(kv: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores new keys and values (or latents). kv ``[num_tokens, 2, num_kv_heads, head_dim]``, or as else one token's
    place in the cache is shaped; slots ``[num_tokens]`` int64.

    Nothing is written for a slot below 0; the others must be distinct and in range.
    """
    rows, kv = cache.flatten(0, 1), kv.to(cache.dtype)
    if not len(slots):
        return
    # No look at values: what has no slot writes once more what the first with a slot writes, or what lies in slot 0.
    written = slots >= 0
    first = written.int().argmax(keepdim=True)
    stand_in = torch.where(written[first], kv[first], rows[0])
    kv = torch.where(written.view(-1, *[1] * (kv.ndim - 1)), kv, stand_in)
    rows.index_copy_(0, torch.where(written, slots, slots[first].clamp(min=0)), kv)


def paged_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of a batch of requests with different lengths, read through their block tables.

    q ``[num_tokens, num_heads, head_dim]``: the queries of all requests, one after the other; request b owns rows
    ``query_start[b] … query_start[b+1]`` and they are the *last* tokens of its ``seq_lens[b]`` (their own keys and
    values are in the cache already). block_tables ``[batch, max_blocks]`` int64; columns past a request's length are
    not read. Query heads share KV heads in groups of ``num_heads / num_kv_heads`` (GQA, Ainslie et al. 2023). With
    ``window`` a token sees itself and the ``window − 1`` tokens before it. A request may be empty, or have more queries
    than tokens: what sees no key becomes zeros. Returns the shape of q.
    """
    rows = cache.flatten(0, 1)
    output = torch.empty_like(q)
    for b, length in enumerate(seq_lens):
        own = slice(query_start[b], query_start[b + 1])
        keys, values = rows[slots_of(block_tables[b], length, cache.shape[1])].to(q.dtype).unbind(1)
        output[own] = causal_attention(q[own], keys, values, scale, window)
    return output


def slots_of(table: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """The slots of a request's first ``length`` tokens, by its block table ``[max_blocks]``."""
    positions = torch.arange(length, device=table.device)
    return table[positions // block_size] * block_size + positions % block_size


def causal_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """One request: q ``[queries, num_heads, d]``, the last of the tokens whose keys ``[length, num_kv_heads, d]`` and
    values ``[length, num_kv_heads, d_v]`` are given. Returns ``[queries, num_heads, d_v]``."""
    length, num_kv_heads = keys.shape[:2]
    positions = torch.arange(length, device=q.device)
    grouped = q.unflatten(1, (num_kv_heads, -1))
    scores = torch.einsum("qxgd,kxd->xgqk", grouped, keys).float() * scale
    own = torch.arange(length - len(q), length, device=q.device)[:, None]
    visible = positions <= own
    if window is not None:
        visible &= positions > own - window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0).to(q.dtype)
    return torch.einsum("xgqk,kxd->qxgd", weights, values).flatten(1, 2)
