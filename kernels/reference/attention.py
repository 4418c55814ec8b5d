"""Paged attention by plain gather: the specification that every faster maker must agree with.

The cache of one layer is ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``, keys at index 0 and values at 1, so
one token's keys and values lie side by side and are written and gathered as one row. Token i of a request lies in block
``block_table[i // block_size]`` at row ``i % block_size``; ``slot = block · block_size + row`` numbers all rows.
"""

from __future__ import annotations

import torch


def write_kv(kv: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores new keys and values. kv ``[num_tokens, 2, num_kv_heads, head_dim]``; slots ``[num_tokens]`` int64.

    Slots must be distinct and in range: there is no padding slot here.
    """
    cache.flatten(0, 1).index_copy_(0, slots, kv.to(cache.dtype))


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
    num_heads, block_size, num_kv_heads = q.shape[1], cache.shape[1], cache.shape[3]
    rows = cache.flatten(0, 1)
    output = torch.empty_like(q)
    for b, length in enumerate(seq_lens):
        begin, end = query_start[b], query_start[b + 1]
        positions = torch.arange(length, device=q.device)
        slots = block_tables[b, positions // block_size] * block_size + positions % block_size
        keys, values = rows[slots].to(q.dtype).unbind(1)  # each [length, num_kv_heads, head_dim]
        group = num_heads // num_kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], keys).float() * scale
        own = torch.arange(length - (end - begin), length, device=q.device)[:, None]
        visible = positions <= own
        if window is not None:
            visible &= positions > own - window
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0).to(q.dtype)
        output[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return output
