"""One model, several engines: weights are shared on request, and a KV cache serves one engine at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_llm import GREEDY, PROMPTS, open_llm, tokens
from workbench import LLM, Engine
from workbench.errors import UsageError, WorkbenchError
from workbench.model.kv_cache import KVCache


@pytest.fixture
def llm(folder: Path) -> LLM:
    return open_llm(folder)


def serve(engine: Engine, prompt: list[int]) -> list[int]:
    """The answer of an engine to one prompt, run to its end."""
    request = engine.requests[engine.add_request(prompt, GREEDY)]
    while engine.has_unfinished():
        engine.step()
    return request.output_token_ids


def test_shared_weights_are_the_same_tensors_and_give_the_same_tokens(llm: LLM, monkeypatch) -> None:
    monkeypatch.setattr("workbench.llm.load_model", lambda *_: pytest.fail("weights were loaded again"))
    other = LLM(weights_of=llm, block_size=8, num_kv_blocks=20, max_num_seqs=1, max_model_len=60, seed=3)
    assert other.runner.decoder.embedding is llm.runner.decoder.embedding
    assert other.runner.cache is not llm.runner.cache and other.config.model == llm.config.model
    assert other.runner.decoder.cos.shape[0] == 60 and llm.runner.decoder.cos.shape[0] == 512
    assert tokens(other) == tokens(llm)


def test_the_shared_model_may_use_another_attention_backend(folder: Path) -> None:
    llm = open_llm(folder, attention_backend="sdpa")
    other = LLM(weights_of=llm, attention_backend="torch_native", num_kv_blocks=64)
    assert (other.runner.decoder.attention.name, llm.runner.decoder.attention.name) == ("torch_native", "sdpa")
    assert tokens(other) == tokens(llm)


@pytest.mark.parametrize(("name", "value"), [("dtype", "bfloat16"), ("model", "tiny"), ("load_format", "dummy")])
def test_options_the_weights_were_loaded_by_cannot_differ(llm: LLM, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}='{value}': the weights to be shared were loaded with"):
        LLM(weights_of=llm, **{name: value})


def test_dummy_weights_come_from_the_seed(folder: Path) -> None:
    dummy = open_llm(folder, load_format="dummy", seed=1)
    assert LLM(weights_of=dummy, num_kv_blocks=8).config.seed == 1
    with pytest.raises(UsageError, match="seed=2"):
        LLM(weights_of=dummy, seed=2)


def test_idle_engines_take_turns(llm: LLM) -> None:
    expected = tokens(llm, PROMPTS)
    small = llm.new_engine(max_num_batched_tokens=4, num_kv_blocks=16)
    assert serve(small, PROMPTS[1]) == expected[1]
    assert tokens(llm, PROMPTS) == expected
    assert serve(small, PROMPTS[1]) == expected[1]


def test_an_engine_that_lost_the_cache_amid_a_request_says_so(llm: LLM) -> None:
    expected = tokens(llm, [PROMPTS[1]])[0]
    older, newer = llm.new_engine(num_kv_blocks=16), llm.new_engine(num_kv_blocks=16)
    older.add_request(PROMPTS[1], GREEDY, request_id="old")
    older.step()
    newer.add_request(PROMPTS[2], GREEDY)
    newer.step()
    for _ in range(2):
        # A fresh request in the same step must not make the engine believe that it owns the cache again.
        older.add_request(PROMPTS[0], GREEDY)
        with pytest.raises(WorkbenchError, match="another engine has taken over this model's KV cache"):
            older.step()
    newer.step()
    for name in list(older.requests):
        older.abort(name)
    assert serve(older, PROMPTS[1]) == expected
    with pytest.raises(WorkbenchError, match="taken over"):
        newer.step()


def test_without_the_guard_the_answer_would_be_wrong(llm: LLM, monkeypatch) -> None:
    """The seeded bug: what the guard is for."""
    monkeypatch.setattr(KVCache, "lend_to", lambda *_: None)
    expected = tokens(llm, [PROMPTS[1]])[0]
    older, newer = llm.new_engine(num_kv_blocks=16), llm.new_engine(num_kv_blocks=16)
    request = older.requests[older.add_request(PROMPTS[1], GREEDY)]
    older.step()
    serve(newer, list(range(30, 60)))
    while older.has_unfinished():
        older.step()
    assert request.output_token_ids != expected


def test_a_failed_first_step_does_not_lose_the_cache(llm: LLM, monkeypatch) -> None:
    expected = tokens(llm, [PROMPTS[1]])[0]
    engine = llm.new_engine(num_kv_blocks=16)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(KVCache, "lend_to", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        serve(engine, PROMPTS[1])
    (request,) = engine.requests.values()
    while engine.has_unfinished():
        engine.step()
    assert request.output_token_ids == expected


@pytest.mark.parametrize("limits", [{"num_kv_blocks": 65}, {"block_size": 8}])
def test_an_engine_whose_blocks_do_not_fit_the_cache_is_refused(llm: LLM, limits: dict[str, int]) -> None:
    engine = Engine(llm.config.replace(**limits), llm.runner)
    engine.add_request(PROMPTS[0], GREEDY)
    with pytest.raises(UsageError, match=r"does not fit this model's cache of 64 × 4: keep block_size and lower"):
        engine.step()


def test_a_new_engine_takes_only_an_engines_options(llm: LLM) -> None:
    assert llm.new_engine(max_num_seqs=2).config.max_num_seqs == 2
    with pytest.raises(UsageError, match="block_size belongs to the model or its cache"):
        llm.new_engine(block_size=8)
    with pytest.raises(UsageError, match="unknown engine option 'max_num_seq'"):
        llm.new_engine(max_num_seq=2)
    with pytest.raises(UsageError, match="max_model_len=513 is beyond"):
        llm.new_engine(max_model_len=513)
