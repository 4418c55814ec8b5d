"""Latent attention and mixtures of experts against transformers: the same tiny random models, on both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.test_families import NEW_TOKENS, TOLERANCE, Saved, assert_best, largest_gap, prompt
from tests.model.tiny import make_tiny
from tests.model.tiny_latent import MIXED
from tests.tiny_llm import open_llm
from workbench import LLM, SamplingParams
from workbench.attention.latent_shape import LatentAttention
from workbench.model import latent_attention
from workbench.model.decoder import Decoder
from workbench.model.mlp import Mixture
from workbench.model.weights import load_weights

GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module", params=MIXED)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    path = tmp_path_factory.mktemp(request.param)
    return Saved(request.param, path, make_tiny(request.param, path, max_shard_size="80KB"))


def test_logits_equal_transformers(saved: Saved) -> None:
    assert largest_gap(open_llm(saved.path, max_num_seqs=1), saved.theirs) < TOLERANCE


@pytest.mark.parametrize("saved", [name for name in MIXED if "deepseek" in name], indirect=True)
@pytest.mark.parametrize("expands", [True, False])
def test_both_ways_of_latent_attention_equal_transformers(
    saved: Saved, expands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LatentAttention, "expands", lambda *args: expands)
    assert largest_gap(open_llm(saved.path), saved.theirs) < TOLERANCE


def test_greedy_tokens_equal_transformers(saved: Saved) -> None:
    """All prompts at once, cut into chunks by a small budget; transformers takes each alone, without a cache."""
    prompts = [prompt(length, 211) for length in (1, 16, 61)]
    llm = open_llm(saved.path, max_num_batched_tokens=33, block_size=17)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert_best(saved.theirs, prompts, [output.token_ids for output in outputs])
    llm.engine.pool.check()


def test_the_oracle_generates_the_same_with_its_own_cache(saved: Saved) -> None:
    given = prompt(16, 211)
    generated = saved.theirs.generate(
        torch.tensor([given]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1
    )
    [output] = open_llm(saved.path).generate([given], GREEDY, use_tqdm=False)
    assert output.token_ids == generated[0, len(given) :].tolist()


def test_stacked_experts_are_read_alike(saved: Saved, tmp_path: Path) -> None:
    """As transformers 5 holds them: one tensor for all experts' gates and rows up, one for those down."""
    saved.theirs.save_pretrained(tmp_path, save_original_format=False)
    config = open_llm(saved.path).model_config
    one_by_one = load_weights(config, saved.path, "auto", torch.float32)
    stacked = load_weights(config, tmp_path, "auto", torch.float32)
    assert list(one_by_one) == list(stacked)
    assert all(torch.equal(one_by_one[name], stacked[name]) for name in stacked)  # type: ignore[arg-type]


# Faults that the comparison above must show. Each takes the open model, and what else it needs, and spoils it.


def other_config(**changes: Any) -> Callable[[LLM, Saved, pytest.MonkeyPatch], None]:
    def spoil(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
        config = llm.model_config
        given = {name: change(getattr(config, name)) for name, change in changes.items()}
        config = replace(config, **given)
        weights = load_weights(llm.model_config, saved.path, "auto", torch.float32)
        llm.runner.decoder = Decoder(config, weights, llm.runner.decoder.attention, 256)

    return spoil


def routing(**changes: Any) -> Callable[[LLM, Saved, pytest.MonkeyPatch], None]:
    return other_config(experts=lambda experts: replace(experts, routing=replace(experts.routing, **changes)))


def mixtures(llm: LLM) -> list[Mixture]:
    return [layer.mlp for layer in llm.runner.decoder.layers if isinstance(layer.mlp, Mixture)]


def no_shared(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    for mixture in mixtures(llm):
        mixture.shared = None


def no_shared_gate(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    for mixture in mixtures(llm):
        mixture.shared_gate = None


def no_correction(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    for mixture in mixtures(llm):
        mixture.correction = None


def experts_turned(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    for mixture in mixtures(llm):
        mixture.experts = mixture.experts[1:] + mixture.experts[:1]


def gates_and_rows_up_swapped(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    weights = load_weights(llm.model_config, saved.path, "auto", torch.float32)
    for name in list(weights):
        if ".experts.0." in name and "gate_proj" in name:
            other = name.replace("gate_proj", "up_proj")
            weights[name], weights[other] = weights[other], weights[name]
    llm.runner.decoder = Decoder(llm.model_config, weights, llm.runner.decoder.attention, 256)


def inner_eps(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(latent_attention, "INNER_EPS", llm.model_config.rms_norm_eps)


def no_bias(name: str) -> Callable[[LLM, Saved, pytest.MonkeyPatch], None]:
    def spoil(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
        weights = load_weights(llm.model_config, saved.path, "auto", torch.float32)
        for found in [key for key in weights if key.endswith(name)]:
            weights[found] = torch.zeros_like(weights[found])  # type: ignore[arg-type]
        llm.runner.decoder = Decoder(llm.model_config, weights, llm.runner.decoder.attention, 256)

    return spoil


def scaling(**changes: Any) -> Callable[[LLM, Saved, pytest.MonkeyPatch], None]:
    return other_config(rope_scaling=lambda scaling: replace(scaling, **changes))


def other_pairs(llm: LLM, saved: Saved, patch: pytest.MonkeyPatch) -> None:
    other_config(latent=lambda latent: replace(latent, interleaved=not latent.interleaved))(llm, saved, patch)


FAULTS: dict[str, dict[str, Callable[[LLM, Saved, pytest.MonkeyPatch], None]]] = {
    "deepseek-v2-lite": {
        "inner eps": inner_eps,
        "pairs half a head apart": other_pairs,
        "no bias of latents": no_bias("kv_a_proj_with_mqa.bias"),
        "no bias of the shared expert": no_bias("shared_experts.down_proj.bias"),
        "no shared expert": no_shared,
        "scores divided by their sum": lambda llm, saved, patch: [
            mixture._routing.update(normalized=True) for mixture in mixtures(llm)
        ],
    },
    "deepseek-v2": {
        "scores not scaled up": scaling(mscale_all_dim=0.0, attention_factor=1.0),
        "no groups": routing(num_groups=1, groups_per_token=1),
        "groups by their two best": routing(group_best=2),
        "no scale of the routed": routing(scale=1.0),
        "plain rope": other_config(rope_scaling=lambda scaling: replace(scaling, kind="linear", factor=1.0)),
    },
    "deepseek-v3": {
        "softmax": lambda llm, saved, patch: [mixture._routing.update(scoring="softmax") for mixture in mixtures(llm)],
        "no correction": no_correction,
        "groups by their best": routing(group_best=1),
        "not normalized": routing(normalized=False),
        "experts turned": experts_turned,
        "gates and rows up swapped": gates_and_rows_up_swapped,
        "sines not scaled": scaling(attention_factor=1.0),
        "pairs half a head apart": other_pairs,
    },
    "deepseek-v3-halves": {"neighbouring pairs": other_pairs, "normalized": routing(normalized=True)},
    "qwen3-moe": {"not normalized": routing(normalized=False), "experts turned": experts_turned},
    "qwen2-moe": {"no gate of the shared expert": no_shared_gate, "no bias of keys": no_bias("k_proj.bias")},
    "mixtral": {"not normalized": routing(normalized=False), "window": other_config(sliding_window=lambda width: 8)},
}


def test_a_seeded_fault_is_caught(saved: Saved) -> None:
    for name, spoil in FAULTS[saved.name].items():
        llm = open_llm(saved.path)
        with pytest.MonkeyPatch.context() as patch:
            spoil(llm, saved, patch)
            gap = largest_gap(llm, saved.theirs)
        assert gap > 30 * TOLERANCE, f"{name}: {gap}"
