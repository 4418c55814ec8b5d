"""Latent attention (MLA) with keys and values rebuilt: latents are gathered and multiplied out, then FlashAttention.

For many queries of a request, to which rebuilding costs little. The rebuilt keys and values go through memory, and the
kernel has one head size: where values are narrower than keys they are padded with zeros.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from kernels.reference.attention import slots_of
from kernels.triton.attention_call import refusal_of_heads
from kernels.triton.flash_attention import flash_attention
from kernels.triton.launch import require, strange
from kernels.triton.paged_call import refusal_of_tables

__all__ = ["expanded_latent_attention", "refusal"]


def refusal(
    q: torch.Tensor, cache: torch.Tensor, block_tables: torch.Tensor, key_up: torch.Tensor, value_up: torch.Tensor
) -> str:
    """Why these tensors cannot be taken; empty if they can."""
    reason = refusal_of_heads(max(q.shape[2], value_up.shape[1]), q.dtype, q.device)
    return reason or strange(q=q, cache=cache, key_up=key_up) or refusal_of_tables(block_tables, q.device)


def expanded_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    *,
    scale: float,
) -> torch.Tensor:
    """See `kernels.reference.expanded_latent_attention`. Raises ValueError for what it does not take."""
    require("expanded_latent_attention", refusal(q, cache, block_tables, key_up, value_up))
    rank, width = key_up.shape[2], value_up.shape[1]
    heads, head_dim = q.shape[1], max(q.shape[2], width)
    slots = [slots_of(block_tables[b], length, cache.shape[1]) for b, length in enumerate(seq_lens)]
    rows = cache.flatten(0, 1)[torch.cat([block_tables.new_empty(0), *slots])].to(q.dtype)
    rotated = rows[:, None, rank:].expand(-1, heads, -1)
    keys = torch.cat((torch.einsum("nr,hdr->nhd", rows[:, :rank], key_up), rotated), -1)
    values = torch.einsum("nr,hvr->nhv", rows[:, :rank], value_up)
    q, keys, values = (pad(x, (0, head_dim - x.shape[2])).contiguous() for x in (q, keys, values))
    starts = torch.tensor(query_start, dtype=torch.int32, device=q.device)
    ends = torch.tensor([0, *seq_lens], device=q.device).cumsum(0, dtype=torch.int32)
    out, _ = flash_attention(q, keys, values, starts, ends, scale=scale)
    return out[..., :width]
