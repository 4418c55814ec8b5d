"""Prefix caching with a tiny real model: what `LLM` tells of it, and caches that are shared, lost and taken over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_llm import GREEDY, assert_empty, open_llm, tokens
from workbench import LLM
from workbench.engine.engine import Engine
from workbench.errors import UsageError
from workbench.kv.caching_pool import CachingPool
from workbench.model.weights.fingerprint import weights_fingerprint

PROMPT = list(range(3, 23))
OTHER = list(range(30, 50))


@pytest.fixture
def llm(folder: Path) -> LLM:
    return open_llm(folder, enable_prefix_caching=True)


def serve(engine: Engine, prompt: list[int]) -> tuple[list[int], int]:
    """Answer and cached tokens."""
    request = engine.requests[engine.add_request(prompt, GREEDY)]
    while engine.has_unfinished():
        engine.step()
        engine.pool.check()
    return request.output_token_ids, request.num_cached_tokens


def test_outputs_tell_what_was_cached(llm: LLM) -> None:
    found = [llm.generate(PROMPT, GREEDY, use_tqdm=False, cache_salt=salt)[0] for salt in (None, None, "a", "a", "b")]
    assert [output.num_cached_tokens for output in found] == [0, 16, 0, 16, 0]
    assert len({tuple(output.token_ids) for output in found}) == 1
    assert all(output.metrics.queue is not None for output in found)
    assert_empty(llm)


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_a_part_of_a_block_is_copied(folder: Path, index: str) -> None:
    """Blocks of four: the copy of the last one, all but a token, gives the same answer as computing it."""
    llm = open_llm(folder, prefix_index=index, prefix_partial_reuse=True)
    cold = open_llm(folder, enable_prefix_caching=False)
    for prompt, cached in ((PROMPT, 0), (PROMPT, 19), ([*PROMPT[:10], *OTHER], 10), ([*PROMPT[:2], *OTHER[:9]], 2)):
        output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        assert (output.token_ids, output.num_cached_tokens) == (tokens(cold, [prompt])[0], cached)
    assert_empty(llm)


def test_a_salt_without_prefix_caching_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cache_salt='a' has no effect without enable_prefix_caching=True"):
        open_llm(folder, enable_prefix_caching=False).generate(PROMPT, GREEDY, use_tqdm=False, cache_salt="a")


def test_a_new_engine_may_turn_it_on_and_off(folder: Path) -> None:
    llm = open_llm(folder, enable_prefix_caching=False)
    expected = tokens(llm, [PROMPT])[0]
    warm = llm.new_engine(enable_prefix_caching=True)
    assert (warm.config.prefix_index, warm.cache is not None) == ("radix", True)
    assert [serve(warm, PROMPT) for _ in range(2)] == [(expected, 0), (expected, 16)]
    assert llm.new_engine(enable_prefix_caching=True, prefix_index="hash").config.prefix_index == "hash"
    cold = open_llm(folder, enable_prefix_caching=True).new_engine(enable_prefix_caching=False)
    assert cold.cache is None and serve(cold, PROMPT) == (expected, 0)


def test_an_engine_that_lost_the_cache_finds_nothing_in_it(llm: LLM) -> None:
    """Another engine has written over the blocks: what they held must never be met."""
    expected = tokens(llm, [PROMPT, OTHER])
    first, second = llm.new_engine(), llm.new_engine()
    assert serve(first, PROMPT) == (expected[0], 0) and serve(first, PROMPT) == (expected[0], 16)
    assert serve(second, OTHER) == (expected[1], 0)
    assert first.pool.num_cached == 0
    assert serve(first, PROMPT) == (expected[0], 0)
    assert serve(first, PROMPT) == (expected[0], 16)


def test_a_cache_that_does_not_hear_of_it_answers_wrong(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded bug: what telling is for."""
    monkeypatch.setattr(CachingPool, "lost", lambda self: None)
    expected = tokens(llm, [PROMPT])[0]
    first, second = llm.new_engine(), llm.new_engine()
    serve(first, PROMPT)
    serve(second, OTHER)
    answer, cached = serve(first, PROMPT)
    assert cached == 16 and answer != expected


def test_weights_that_changed_in_place_need_a_reset(llm: LLM) -> None:
    before = tokens(llm, [PROMPT])[0]
    weight = llm.runner.decoder.embedding.data
    with torch.inference_mode():
        weight.copy_(weight.flip(0))
    assert llm.reset_prefix_cache() is True
    after = llm.generate(PROMPT, GREEDY, use_tqdm=False)[0]
    assert after.num_cached_tokens == 0 and after.token_ids != before
    assert tokens(open_llm_again(llm), [PROMPT])[0] == after.token_ids


def open_llm_again(llm: LLM) -> LLM:
    """The same (changed) weights, nothing cached."""
    return LLM(weights_of=llm, block_size=4, num_kv_blocks=64)


def test_a_fingerprint_tells_weights_apart() -> None:
    weights = {"a": torch.arange(40_000.0), "b": torch.ones(2, 3)}
    known = weights_fingerprint(weights)
    assert known == weights_fingerprint({name: weights[name].clone() for name in ("b", "a")})
    others = [
        {**weights, "a": weights["a"] * 1.0001},
        {**weights, "b": weights["b"].bfloat16()},
        {**weights, "b": torch.ones(3, 2)},
        {"a": weights["a"], "c": weights["b"]},
        {"a": weights["a"]},
        {**weights, "a": torch.arange(40_000.0).index_fill(0, torch.tensor([39_999]), 0.0)},
    ]
    assert len({known, *map(weights_fingerprint, others)}) == 1 + len(others)
