"""Choosing the next token: a function of (logits, sampling parameters, seed, position) and of nothing else.

The random number of a token comes from the request's seed and the token's position, not from a generator that is
drawn from in turn. So neighbours in the batch, chunked prompts and preemptions cannot change what a seed gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.model.penalties import adjust
from workbench.plan import RequestView

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that looks random: SplitMix64 (Steele, Lea and Flood 2014), once for each argument."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def sample(logits: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    """The next token of each request: logits ``[num_requests, vocab_size]`` float32 → ids ``[num_requests]`` int64.

    Steps, in the order of transformers' processors: `workbench.model.penalties.adjust`; temperature; ``top_k``;
    ``top_p`` over what is left, keeping the smallest set of likeliest tokens that reaches it; ``min_p``, dropping
    tokens less likely than ``min_p`` times the likeliest.
    """
    logits = adjust(logits, requests)
    chosen = logits.argmax(-1)
    # Rows with a filter are sampled in order of likelihood, rows without in order of the vocabulary: separate calls, so
    # that a neighbour's filter cannot change a row's order and with it the token its random number picks.
    plain = [i for i, r in enumerate(requests) if not r.params.greedy and not _filtered(r)]
    filtered = [i for i, r in enumerate(requests) if not r.params.greedy and _filtered(r)]
    for rows, pick in ((plain, _pick_any), (filtered, _pick_likeliest)):
        if rows:
            index = torch.tensor(rows, device=logits.device)
            chosen[index] = pick(logits[index], [requests[i] for i in rows])
    return chosen


def _filtered(request: RequestView) -> bool:
    return request.params.top_k > 0 or request.params.top_p < 1.0 or request.params.min_p > 0.0


def _scaled(logits: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    temperature = torch.tensor([r.params.temperature for r in requests], dtype=torch.float64, device=logits.device)
    wide = logits.double()
    # From the largest down, so that no temperature, however small, divides anything into infinity.
    return (wide - wide.amax(-1, keepdim=True)) / temperature[:, None]


def _uniforms(requests: Sequence[RequestView], device: torch.device) -> torch.Tensor:
    numbers = [uniform(r.seed, len(r.token_ids)) for r in requests]
    return torch.tensor(numbers, dtype=torch.float64, device=device)[:, None]


def _pick_any(logits: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    return _invert(_scaled(logits, requests).softmax(-1), requests)


def _pick_likeliest(logits: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    vocab_size, device = logits.shape[-1], logits.device
    limits = [min(r.params.top_k, vocab_size) if r.params.top_k > 0 else vocab_size for r in requests]
    scores, order = _scaled(logits, requests).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=device)
    scores = scores.masked_fill(rank >= torch.tensor(limits, device=device)[:, None], float("-inf"))
    probabilities = scores.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    top_p = torch.tensor([r.params.top_p for r in requests], dtype=torch.float64, device=device)[:, None]
    min_p = torch.tensor([r.params.min_p for r in requests], dtype=torch.float64, device=device)[:, None]
    # The likeliest token always stays: nothing lies before it, and it is as likely as itself.
    dropped = (before >= top_p) | (probabilities < min_p * probabilities[:, :1])
    kept = probabilities.masked_fill(dropped, 0.0)
    return order.gather(-1, _invert(kept, requests)[:, None])[:, 0]


def _invert(weights: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    """Inverse-transform sampling: the first column at which the running sum passes u · total."""
    cumulative = weights.cumsum(-1)
    target = _uniforms(requests, weights.device) * cumulative[:, -1:]
    column = torch.searchsorted(cumulative, target, right=True)[:, 0]
    # Rounding may push the target past the last column that has any weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(-1)
    return torch.minimum(column, last)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
