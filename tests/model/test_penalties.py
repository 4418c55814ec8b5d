"""Penalties, biases, min_p: against transformers' processors where it has them, else against a plain restatement."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from workbench.engine.request import Request
from workbench.model.penalties import adjust
from workbench.model.sampling import sample
from workbench.sampling_params import SamplingParams

VOCAB = 50


def request(prompt: list[int], output: list[int], seed: int = 0, **options: object) -> Request:
    made = Request("r", prompt, SamplingParams(**options), max_num_tokens=99, seed=seed, eos_token_ids=(2,))
    made.token_ids += output
    return made


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_repetition_counts_prompt_and_output_as_transformers_does() -> None:
    prompt, output = [3, 4, 4, 5], [5, 9, 9]
    found = adjust(logits(0), [request(prompt, output, repetition_penalty=1.7)])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + output]), logits(0))
    assert torch.equal(found, expected) and not torch.equal(found, logits(0))


def test_presence_and_frequency_count_the_output_only() -> None:
    prompt, output = [3, 4, 4, 5], [5, 9, 9, 9]
    found = adjust(logits(1), [request(prompt, output, presence_penalty=0.5, frequency_penalty=0.25)])[0]
    for token, before in enumerate(logits(1)[0].tolist()):
        times = Counter(output)[token]
        assert found[token].item() == pytest.approx(before - 0.5 * (times > 0) - 0.25 * times, abs=1e-6)


def test_bias_can_force_and_forbid_even_when_greedy() -> None:
    best = int(logits(2).argmax())
    assert sample(logits(2), [request([1], [], temperature=0, logit_bias={7: 100.0})]).item() == 7
    assert sample(logits(2), [request([1], [], temperature=0, logit_bias={best: -100.0})]).item() != best


def test_forced_end_waits_for_min_tokens() -> None:
    bias = {2: 100.0}
    early = request([1], [5], temperature=0, logit_bias=bias, min_tokens=2)
    late = request([1], [5, 6], temperature=0, logit_bias=bias, min_tokens=2)
    assert sample(logits(3), [early]).item() != 2
    assert sample(logits(3), [late]).item() == 2


@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    kept = LogitsProcessorList([MinPLogitsWarper(min_p)])(torch.tensor([[1]]), logits(4))[0]
    allowed = {token for token in range(VOCAB) if kept[token] > float("-inf")}
    drawn = {sample(logits(4), [request([1], [], seed=seed, min_p=min_p)]).item() for seed in range(800)}
    assert drawn <= allowed
    likely = {t for t in allowed if kept.softmax(-1)[t] > 0.02}
    assert likely <= drawn


def test_a_row_knows_nothing_of_its_neighbours() -> None:
    many = logits(5, 4)
    requests = [
        request([1, 2], [3], repetition_penalty=1.3),
        request([1, 2], [3]),
        request([1, 2], [3, 3], frequency_penalty=1.0, min_p=0.1),
        request([1, 2], [], logit_bias={1: 5.0}, top_p=0.9),
    ]
    together = sample(many, requests).tolist()
    alone = [sample(many[i : i + 1], [r]).item() for i, r in enumerate(requests)]
    assert together == alone
    assert torch.equal(many, logits(5, 4)), "the model's logits are left as they were"
