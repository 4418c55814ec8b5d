"""Which experts a token goes to (mixture of experts): the specification."""

from __future__ import annotations

import torch


def route(
    logits: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    experts_per_token: int,
    scoring: str = "softmax",
    num_groups: int = 1,
    groups_per_token: int = 1,
    group_best: int = 1,
    normalized: bool = False,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token and the share of each, from the router's logits ``[num_tokens, num_experts]``.

    Scores are ``scoring`` of the logits: ``softmax`` over all experts or ``sigmoid`` of each. ``correction``
    ``[num_experts]`` is added for choosing only (DeepSeek-V3, arXiv 2412.19437). Experts in ``num_groups`` equal groups
    are first narrowed down to the ``groups_per_token`` groups whose ``group_best`` best scores add up to the most, then
    the best ``experts_per_token`` are taken. What an expert counts is its score, divided by the chosen ones' sum if
    ``normalized``, times ``scale``. Returns (int64, float32), each ``[num_tokens, experts_per_token]``, the best first.
    """
    scores = logits.float().sigmoid() if scoring == "sigmoid" else logits.float().softmax(-1)
    ranked = scores if correction is None else scores + correction
    if num_groups > 1:
        grouped = ranked.unflatten(-1, (num_groups, -1))
        groups = grouped.topk(group_best, -1).values.sum(-1).topk(groups_per_token, -1).indices
        left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=logits.device).scatter_(-1, groups, False)
        ranked = grouped.masked_fill(left_out[..., None], float("-inf")).flatten(-2)
    chosen = ranked.topk(experts_per_token, -1).indices
    weights = scores.gather(-1, chosen)
    if normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * scale
