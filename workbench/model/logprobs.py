"""Log probabilities of tokens, as the model gave them: before penalties, temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.plan import Logprob, Logprobs


def logprobs_of(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[Logprobs]:
    """For each row of logits ``[rows, vocab_size]`` float32: its token, then the ``num_top`` likeliest ones.

    The token itself always stands in front, so a row has ``num_top`` or ``num_top + 1`` entries.
    """
    scores = logits.log_softmax(-1)
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    own = scores.gather(-1, chosen)
    ranks = (scores > own).sum(-1) + 1
    values, ids = scores.topk(min(num_top, scores.shape[-1]), -1)
    rows = zip(token_ids, own[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [
        {token: Logprob(value, rank)}
        | {i: Logprob(v, n) for n, (i, v) in enumerate(zip(top, top_values, strict=True), 1) if i != token}
        for token, value, rank, top, top_values in rows
    ]
