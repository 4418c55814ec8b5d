"""What is done to logits before the choice: forbidden early ends, biases, penalties. Only rows that ask for it change.

Repetition penalty: CTRL (Keskar et al. 2019), over prompt and output. Presence and frequency penalties: over the output
only, as OpenAI's interface defines them and vLLM does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from workbench.plan import RequestView


def adjust(logits: torch.Tensor, requests: Sequence[RequestView]) -> torch.Tensor:
    """Logits ``[num_requests, vocab_size]`` float32 with each request's own changes; the argument is left as it is.

    In this order: end tokens are forbidden until ``min_tokens`` are out; ``logit_bias`` is added; the repetition
    penalty divides positive and multiplies negative logits of seen tokens; the presence penalty is taken off once for a
    token that the output holds, the frequency penalty once for each time.
    """
    adjusted = None
    for row, request in enumerate(requests):
        if _changes(request):
            if adjusted is None:
                adjusted = logits.clone()
            _adjust_row(adjusted[row], request)
    return logits if adjusted is None else adjusted


def _changes(request: RequestView) -> bool:
    params = request.params
    return bool(
        len(request.token_ids) - request.num_prompt_tokens < params.min_tokens
        or params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
    )


def _adjust_row(row: torch.Tensor, request: RequestView) -> None:
    params = request.params
    output = request.token_ids[request.num_prompt_tokens :]
    if len(output) < params.min_tokens:
        ends = [token for token in request.stop_token_ids if token < len(row)]
        row[torch.tensor(ends, dtype=torch.int64, device=row.device)] = float("-inf")
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias.items(), strict=True)
        row[torch.tensor(ids, device=row.device)] += torch.tensor(biases, dtype=row.dtype, device=row.device)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(list(dict.fromkeys(request.token_ids)), device=row.device)
        scores = row[seen]
        row[seen] = torch.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
    if output and (params.presence_penalty or params.frequency_penalty):
        counts = Counter(output)
        ids_ = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[ids_] -= params.presence_penalty + params.frequency_penalty * times
