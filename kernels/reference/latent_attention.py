"""Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents: the specification.

One layer's cache is ``[num_blocks, block_size, rank + rope]``: of each token the normalized latent, ``rank`` numbers,
then the one rotated key that all heads share, ``rope`` numbers. ``key_up`` ``[num_heads, nope, rank]`` rebuilds keys
from a latent, ``value_up`` ``[num_heads, value, rank]`` values. A query head is ``[nope | rope]``, its rotated part
last.

As ``q · (U · c) = (Uᵀ · q) · c``, a score may be taken against rebuilt keys (*expanded*, for many queries) or against
the latents themselves (*absorbed*, for decoding, which reads the cache once for all heads and rebuilds nothing).
"""

from __future__ import annotations

import torch

from kernels.reference.attention import causal_attention, slots_of


def absorb(q: torch.Tensor, key_up: torch.Tensor) -> torch.Tensor:
    """Queries for latents: q ``[num_tokens, num_heads, nope + rope]`` → ``[num_tokens, num_heads, rank + rope]``."""
    nope = key_up.shape[1]
    return torch.cat((torch.einsum("nhd,hdr->nhr", q[..., :nope], key_up), q[..., nope:]), -1)


def lift(attended: torch.Tensor, value_up: torch.Tensor) -> torch.Tensor:
    """Values of weighted sums of latents: ``[num_tokens, num_heads, rank]`` → ``[num_tokens, num_heads, value]``."""
    return torch.einsum("nhr,hvr->nhv", attended, value_up)


def paged_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    *,
    rank: int,
    scale: float,
) -> torch.Tensor:
    """Causal attention over latents, all heads reading the same rows: a key is a whole row, a value its first ``rank``.

    q ``[num_tokens, num_heads, rank + rope]``, as `absorb` makes it; block tables and lengths as in
    `kernels.reference.paged_attention`. Returns ``[num_tokens, num_heads, rank]``, for `lift`.
    """
    rows = cache.flatten(0, 1)
    output = q.new_empty(q.shape[0], q.shape[1], rank)
    for b, length in enumerate(seq_lens):
        own = slice(query_start[b], query_start[b + 1])
        latents = rows[slots_of(block_tables[b], length, cache.shape[1])].to(q.dtype)[:, None]
        output[own] = causal_attention(q[own], latents, latents[..., :rank], scale)
    return output


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
    """Causal attention over keys and values that are rebuilt from each request's latents.

    q ``[num_tokens, num_heads, nope + rope]``; block tables and lengths as in `kernels.reference.paged_attention`.
    Returns ``[num_tokens, num_heads, value]``, as `lift` of `paged_latent_attention` of `absorb` does.
    """
    rank, rows = key_up.shape[2], cache.flatten(0, 1)
    output = q.new_empty(q.shape[0], q.shape[1], value_up.shape[1])
    for b, length in enumerate(seq_lens):
        own = slice(query_start[b], query_start[b + 1])
        latents = rows[slots_of(block_tables[b], length, cache.shape[1])].to(q.dtype)
        latents, rotated = latents[:, :rank], latents[:, None, rank:].expand(-1, q.shape[1], -1)
        keys = torch.cat((torch.einsum("nr,hdr->nhd", latents, key_up), rotated), -1)
        output[own] = causal_attention(q[own], keys, torch.einsum("nr,hvr->nhv", latents, value_up), scale)
    return output
