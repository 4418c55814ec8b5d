"""PyTorch's fused attention over gathered keys and values.

Requests that decode (one query each) are padded to a common length and attended together, in a few groups of similar
length so that little is padded; a chunk of a prompt is attended alone. Keys and values are gathered token by token
through the block table, and a padded place repeats the request's own last token: memory that no request has written
is never read, so whatever lies there cannot leak in (0 · NaN is NaN, a mask alone would not do).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from workbench.attention.interface import AttentionBatch

MAX_PADDING = 1.3
"""A group of decodes is closed when its longest context would be this many times its shortest …"""
MIN_PADDING = 64
"""… and more than this many tokens longer: below that a call of its own costs more than the padding."""
CPU_GROUP_BYTES = 3_500_000
"""Gathered keys and values of a group on a CPU: what was just written must still lie in the cache when it is read.
Measured, 32 requests of 500 tokens: 6 ms a layer in groups of 3 MB, 13 ms in groups of 6 MB."""


class _Decodes(NamedTuple):
    rows: torch.Tensor | None  # [batch] rows of q; None = all of them in order
    slots: torch.Tensor  # [batch · length]
    length: int
    bias: torch.Tensor | None  # [batch, 1, 1, length], 0 or −inf; None = nothing is padded


class _Chunk(NamedTuple):
    begin: int
    end: int
    slots: torch.Tensor  # [length]
    bias: torch.Tensor | None  # [queries, length]; None = plain causal


class _Prepared(NamedTuple):
    decodes: list[_Decodes]
    chunks: list[_Chunk]


class Sdpa:
    name = "sdpa"
    capturable = False

    def prepare(self, batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> _Prepared:
        starts, lengths = batch.query_start, batch.seq_lens
        decodes = [b for b in range(len(lengths)) if starts[b + 1] - starts[b] == 1]
        chunks = [b for b in range(len(lengths)) if starts[b + 1] - starts[b] > 1]
        seen = {b: lengths[b] if window is None else min(lengths[b], window) for b in decodes}
        on_cpu = batch.block_tables.device.type == "cpu"
        most_tokens = CPU_GROUP_BYTES // batch.token_bytes if on_cpu else None
        groups = _groups(sorted(decodes, key=lambda b: seen[b]), seen, most_tokens)
        return _Prepared(
            [_decodes(batch, sorted(group), seen, dtype) for group in groups],
            [_chunk(batch, b, window, dtype) for b in chunks],
        )

    def attend(self, q: torch.Tensor, cache: torch.Tensor, prepared: _Prepared, scale: float) -> torch.Tensor:
        decodes, chunks = prepared
        if not chunks and len(decodes) == 1 and decodes[0].rows is None:
            return _attend_decodes(q, cache, decodes[0], scale)
        output = torch.empty_like(q)
        for group in decodes:
            assert group.rows is not None
            output[group.rows] = _attend_decodes(q[group.rows], cache, group, scale)
        for chunk in chunks:
            output[chunk.begin : chunk.end] = _attend_chunk(q[chunk.begin : chunk.end], cache, chunk, scale)
        return output


def _groups(by_length: list[int], seen: dict[int, int], most_tokens: int | None) -> list[list[int]]:
    """Requests of similar length together; with ``most_tokens`` no group gathers more than that, padding included."""
    groups: list[list[int]] = []
    for b in by_length:
        group = groups[-1] if groups else []
        alike = bool(group) and seen[b] <= max(MAX_PADDING * seen[group[0]], seen[group[0]] + MIN_PADDING)
        if alike and (most_tokens is None or (len(group) + 1) * seen[b] <= most_tokens):
            group.append(b)
        else:
            groups.append([b])
    return groups


def _slots(batch: AttentionBatch, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Slots of ``positions`` [batch, length] in the block tables of the requests ``rows`` [batch]."""
    blocks = batch.block_tables[rows].gather(1, positions // batch.block_size)
    return blocks * batch.block_size + positions % batch.block_size


def _decodes(batch: AttentionBatch, group: list[int], seen: dict[int, int], dtype: torch.dtype) -> _Decodes:
    device = batch.block_tables.device
    length = max(seen[b] for b in group)
    requests = torch.tensor(group, device=device)
    lengths = torch.tensor([batch.seq_lens[b] for b in group], device=device)[:, None]
    visible = torch.tensor([seen[b] for b in group], device=device)[:, None]
    place = torch.arange(length, device=device)[None]
    positions = torch.minimum(lengths - visible + place, lengths - 1)
    slots = _slots(batch, requests, positions).flatten()
    bias = None
    if any(seen[b] != length for b in group):
        bias = torch.zeros(len(group), 1, 1, length, device=device, dtype=dtype)
        bias.masked_fill_((place >= visible)[:, None, None], float("-inf"))
    everything = len(group) == batch.query_start[-1]
    rows = None if everything else torch.tensor([batch.query_start[b] for b in group], device=device)
    return _Decodes(rows, slots, length, bias)


def _chunk(batch: AttentionBatch, b: int, window: int | None, dtype: torch.dtype) -> _Chunk:
    device = batch.block_tables.device
    begin, end, length = batch.query_start[b], batch.query_start[b + 1], batch.seq_lens[b]
    queries = end - begin
    first = 0 if window is None else max(0, length - queries - window + 1)
    positions = torch.arange(first, length, device=device)
    slots = _slots(batch, torch.tensor([b], device=device), positions[None])[0]
    windowed = window is not None and length > window
    if queries == length and not windowed:
        return _Chunk(begin, end, slots, None)
    own = torch.arange(length - queries, length, device=device)[:, None]
    hidden = positions > own
    if windowed:
        hidden |= positions <= own - window  # type: ignore[operator]
    bias = torch.zeros(queries, length - first, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return _Chunk(begin, end, slots, bias)


def _attend_decodes(q: torch.Tensor, cache: torch.Tensor, group: _Decodes, scale: float) -> torch.Tensor:
    num_kv_heads, head_dim = cache.shape[3:]
    gathered = cache.flatten(0, 1).index_select(0, group.slots).to(q.dtype)
    keys, values = gathered.view(q.shape[0], group.length, 2, num_kv_heads, head_dim).permute(2, 0, 3, 1, 4)
    # The query heads that share a KV head stand as rows of one small matrix, so each key is read once for all of them.
    grouped = q.view(q.shape[0], num_kv_heads, -1, head_dim)
    return F.scaled_dot_product_attention(grouped, keys, values, group.bias, scale=scale).reshape(q.shape)


def _attend_chunk(q: torch.Tensor, cache: torch.Tensor, chunk: _Chunk, scale: float) -> torch.Tensor:
    gathered = cache.flatten(0, 1).index_select(0, chunk.slots).to(q.dtype)
    keys, values = gathered.permute(1, 2, 0, 3)[:, None]  # each [1, num_kv_heads, length, head_dim]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, chunk.bias, is_causal=chunk.bias is None, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)
