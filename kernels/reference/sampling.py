"""The choice of the next token of each row of logits: what it means, in plain PyTorch."""

from __future__ import annotations

import torch


def sample(
    logits: torch.Tensor,
    temperature: list[float] | torch.Tensor,
    top_k: list[int] | torch.Tensor,
    top_p: list[float] | torch.Tensor,
    min_p: list[float] | torch.Tensor,
    u: list[float] | torch.Tensor,
) -> torch.Tensor:
    """Logits ``[rows, vocab_size]`` float32 and each row's options → token ids ``[rows]`` int64.

    ``temperature`` 0 is greedy: the first of the largest. Else logits are divided by it, and the token is the one on
    which the random number ``u`` in [0, 1) falls: the first at which the running sum of probabilities passes u times
    the whole. Filters come in this order: ``top_k`` (0: all); ``top_p`` over what is left, keeping the smallest set of
    likeliest tokens that reaches it; ``min_p``, dropping tokens less likely than ``min_p`` times the likeliest. The
    likeliest always stays. Of equally likely ones the first is the likelier.

    Rows with a filter are summed up in order of likelihood, rows without in order of the vocabulary. Options are lists
    or tensors on the host, float64 and int64; what is done depends on them, so there it is decided without waiting for
    the device.
    """
    rows = list(zip(*map(_listed, (temperature, top_k, top_p, min_p, u)), strict=True))
    chosen = logits.argmax(-1)
    drawn = [i for i, (heat, *_) in enumerate(rows) if heat != 0]
    filtered = [i for i in drawn if rows[i][1] > 0 or rows[i][2] < 1 or rows[i][3] > 0]
    # Separate calls, so that a neighbour's filter cannot change a row's order and with it the token its number picks.
    for indices, pick in ((sorted(set(drawn) - set(filtered)), _pick_any), (filtered, _pick_likeliest)):
        if indices:
            index = torch.tensor(indices, device=logits.device)
            options = torch.tensor([rows[i] for i in indices], dtype=torch.float64, device=logits.device)
            chosen[index] = pick(logits[index], *options[:, :, None].unbind(1))
    return chosen


def _listed(numbers: list[float] | torch.Tensor) -> list[float]:
    return numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers


def _scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    wide = logits.double()
    # From the largest down, so that no temperature, however small, divides anything into infinity.
    return (wide - wide.amax(-1, keepdim=True)) / temperature


def _pick_any(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    u: torch.Tensor,
) -> torch.Tensor:
    return draw(_scaled(logits, temperature).softmax(-1), u)


def _pick_likeliest(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    u: torch.Tensor,
) -> torch.Tensor:
    scores, order = _scaled(logits, temperature).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    scores = scores.masked_fill((top_k > 0) & (rank >= top_k), float("-inf"))
    probabilities = scores.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    dropped = (before >= top_p) | (probabilities < min_p * probabilities[:, :1])
    dropped[:, 0] = False
    kept = probabilities.masked_fill(dropped, 0.0)
    return order.gather(-1, draw(kept, u)[:, None])[:, 0]


def draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Inverse-transform sampling: the first column at which the running sum passes u · total."""
    cumulative = weights.cumsum(-1)
    column = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)[:, 0]
    # Rounding may push the target past the last column that has any weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(-1)
    return torch.minimum(column, last)
