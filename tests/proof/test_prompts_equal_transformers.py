"""Greedy tokens of the default model equal those of transformers in float32, token by token.

An empty prompt is refused on both sides of the same fact: there is no token to compute.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.proof.prompts import ALL, SHORT
from tests.proof.same_tokens import Comparison, greedy
from workbench import LLM
from workbench.errors import UsageError


def transformers_answer(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Its own greedy `generate`, with its own KV cache; no token ends it."""
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": -1}
    generated = model.generate(torch.tensor([prompt]), **options, pad_token_id=0)
    return generated[0, len(prompt) :].tolist()


def compare(llm: LLM, model: PreTrainedModel, prompts: list[str | list[int]], count: int, proof: Any) -> None:
    """All prompts at once through the engine, cut by its budget; each alone through transformers."""

    def logits_after(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([token_ids]), logits_to_keep=1).logits[0, -1]

    outputs = llm.generate(prompts, greedy(count), use_tqdm=False)
    tally = Comparison()
    for output in outputs:
        prompt = output.prompt_token_ids
        expected = transformers_answer(model, prompt, count)
        tally.compare(f"prompt {prompt[:6]}…", prompt, expected, output.token_ids, logits_after)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    figures = f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens: {tally.figures()}"
    proof.report("greedy tokens of the default model equal transformers", figures)
    llm.engine.pool.check()


@pytest.mark.slow
def test_short_prompts(smollm2: LLM, smollm2_transformers: PreTrainedModel, proof: Any) -> None:
    assert len(SHORT) == 12
    compare(smollm2, smollm2_transformers, SHORT, 16, proof)


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_forty_prompts(smollm2: LLM, smollm2_transformers: PreTrainedModel, proof: Any) -> None:
    assert len(ALL) == len({str(prompt) for prompt in ALL}) == 40
    assert smollm2.tokenizer is not None
    lengths = [len(p) if isinstance(p, list) else len(smollm2.tokenizer.encode(p)) for p in ALL]
    assert min(lengths) == 1 and 500 < max(lengths) <= 600
    compare(smollm2, smollm2_transformers, ALL, 32, proof)


@pytest.mark.slow
def test_an_empty_prompt_is_refused(smollm2: LLM) -> None:
    for prompt in ("", []):
        with pytest.raises(UsageError, match="prompt is empty"):
            smollm2.generate([prompt], use_tqdm=False)
