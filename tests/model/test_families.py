"""Every family of the decoder against transformers: the same tiny random model, in float32, logits and greedy tokens.

A flip of a token is excused only where transformers' own two best logits lie within 1e-4; none is expected here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import PreTrainedModel

from tests.model.tiny import FAMILIES, make_tiny
from workbench import LLM, SamplingParams
from workbench.model.decoder import Decoder
from workbench.model.weights import load_weights

TOLERANCE = 1e-4
NEW_TOKENS = 64
PROMPT_LENGTHS = (1, 16, 45)
BACKENDS = ("torch_native", "sdpa", "cpu")


class Saved(NamedTuple):
    name: str
    path: Path
    theirs: PreTrainedModel


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    path = tmp_path_factory.mktemp(request.param)
    # Some come in shards, as large checkpoints do.
    shards = "60KB" if request.param in ("llama3", "qwen2") else "5GB"
    return Saved(request.param, path, make_tiny(request.param, path, max_shard_size=shards))


def prompt(length: int, vocab_size: int) -> list[int]:
    return torch.randint(3, vocab_size, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def logits_of(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0]


def open_llm(path: Path, backend: str, **options: object) -> LLM:
    return LLM(model=str(path), device="cpu", block_size=8, num_kv_blocks=64, attention_backend=backend, **options)


def largest_gap(llm: LLM, theirs: PreTrainedModel) -> float:
    """Largest difference of any logit, over every position of prompts of several lengths."""
    gaps = []
    for length in (*PROMPT_LENGTHS, 130):
        token_ids = prompt(length, theirs.config.vocab_size)
        ours = llm.runner.logits(token_ids)
        assert ours.shape == (length, theirs.config.vocab_size)
        gaps.append((ours - logits_of(theirs, token_ids)).abs().max().item())
    return max(gaps)


def assert_best(theirs: PreTrainedModel, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """Each answer has `NEW_TOKENS` tokens, each of them the best after those before it, with no tie near."""
    for given, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NEW_TOKENS
        # One pass over the whole answer, position by position.
        best = logits_of(theirs, given + answer)[len(given) - 1 : -1].topk(2)
        close = (best.values[:, 0] - best.values[:, 1] < TOLERANCE).sum().item()
        assert close == 0, f"{close} ties: this seed cannot tell right from wrong"
        assert answer == best.indices[:, 0].tolist()
    # An answer that repeats one token would prove little.
    assert min(len(set(answer)) for answer in answers) > 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_equal_transformers(saved: Saved, backend: str) -> None:
    assert largest_gap(open_llm(saved.path, backend), saved.theirs) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_tokens_equal_transformers(saved: Saved, backend: str) -> None:
    """All prompts at once, cut into chunks by a small budget; transformers takes each alone, without a cache."""
    vocab_size = saved.theirs.config.vocab_size
    prompts = [prompt(length, vocab_size) for length in PROMPT_LENGTHS]
    llm = open_llm(saved.path, backend, max_num_batched_tokens=19)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert_best(saved.theirs, prompts, [output.token_ids for output in outputs])
    llm.engine.pool.check()


def test_the_oracle_generates_the_same_when_asked_itself(saved: Saved) -> None:
    """The check above trusts one pass over a finished answer; here transformers' own `generate` answers."""
    given = prompt(16, saved.theirs.config.vocab_size)
    generated = saved.theirs.generate(
        torch.tensor([given]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1
    )
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    [output] = open_llm(saved.path, "sdpa").generate([given], params, use_tqdm=False)
    assert output.token_ids == generated[0, len(given) :].tolist()


# What each family adds to the plain Llama, falsified: a value of the configuration, or the tensors whose names end so.
FALSE_VALUE = {
    "llama2": {"rms_norm_eps": 1e-2},
    "llama3": {"rope_scaling": None},
    "llama-linear": {"rope_scaling": None},
    "qwen2-window": {"sliding_layers": (True, True, True)},
    "mistral": {"sliding_window": 8},
    "smollm2": {"rope_theta": 10000.0},
}
FALSE_TENSORS = {"qwen2": "k_proj.bias", "qwen3": "q_norm.weight"}


def test_a_decoder_that_errs_in_the_family_s_own_part_is_caught(saved: Saved) -> None:
    llm = open_llm(saved.path, "torch_native")
    config = replace(llm.model_config, **FALSE_VALUE.get(saved.name, {}))
    weights = load_weights(config, saved.path, "auto", torch.float32)
    if saved.name in FALSE_TENSORS:
        part = FALSE_TENSORS[saved.name]
        weights |= {name: tensor.flip(0) for name, tensor in weights.items() if name.endswith(part)}
    llm.runner.decoder = Decoder(config, weights, llm.runner.decoder.attention, 256)
    assert largest_gap(llm, saved.theirs) > 100 * TOLERANCE
