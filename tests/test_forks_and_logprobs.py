"""Several answers to one prompt, and log probabilities, against the model run alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.model.tiny import make_tiny
from tests.tiny_llm import assert_empty, open_llm
from workbench import LLM, SamplingParams
from workbench.engine.replay import replay
from workbench.errors import UsageError

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path, seed=4)
    return path


COUNTED = {"enable_prefix_caching": False}
"""So that what is shared and computed is what forks share and compute."""


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return open_llm(folder)


def params(**options: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 9, "ignore_eos": True, "seed": 3, **options})


def answers(llm: LLM, prompt: list[int], n: int) -> list[list[int]]:
    [output] = llm.generate([prompt], params(n=n), use_tqdm=False)
    assert [one.index for one in output.outputs] == list(range(n))
    return [one.token_ids for one in output.outputs]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 10])
@pytest.mark.parametrize(
    "options", [COUNTED, {}, {"max_num_batched_tokens": 3}, {"max_num_seqs": 2}, {"num_kv_blocks": 8}]
)
def test_forks_share_the_prompt_and_change_nothing(folder: Path, length: int, options: dict) -> None:
    """The same answers whether the prompt's blocks are shared, the batch is narrow or the pool so small that forks are
    preempted; the first answer is that of n = 1, and the answers differ."""
    roomy = answers(open_llm(folder), PROMPT[:length], 4)
    llm = open_llm(folder, **options)
    traces: list = []
    llm.engine.listeners.append(traces.append)
    llm.engine.listeners.append(lambda trace: llm.engine.pool.check())
    assert answers(llm, PROMPT[:length], 4) == roomy
    assert roomy[0] == answers(llm, PROMPT[:length], 1)[0]
    assert len({tuple(answer) for answer in roomy}) > 1
    assert_empty(llm)
    full = (length - 1) // 4
    if options == COUNTED:
        assert sum(trace.blocks["shared"] for trace in traces) == 3 * full
        prompt_tokens = sum(s["num_tokens"] for t in traces for s in t.scheduled if s["kind"] == "prefill")
        # The prompt once, and its last token once more for each fork (then all of it for the second call).
        assert prompt_tokens == length + 3 + length
    if options.get("num_kv_blocks"):
        assert length < 5 or sum(len(trace.preempted) for trace in traces) > 0


def test_forks_wait_for_the_prompt_and_say_so(folder: Path) -> None:
    llm = open_llm(folder, max_num_batched_tokens=3)
    llm.engine.add_request(PROMPT, params(n=3), "x")
    first = llm.engine.step()
    assert list(first.skipped) == [
        {"request_id": "x.1", "reason": "prefix_wait"},
        {"request_id": "x.2", "reason": "prefix_wait"},
    ]
    assert llm.engine.abort("x"), "the others go on alone"
    while llm.engine.has_unfinished():
        llm.engine.step()
        llm.engine.pool.check()
    assert_empty(llm)


def test_others_are_not_held_up_by_waiting_forks(folder: Path) -> None:
    llm = open_llm(folder, max_num_batched_tokens=6, long_prefill_token_threshold=3)
    llm.engine.add_request(PROMPT, params(n=3), "x")
    llm.engine.add_request([1, 2], params(), "y")
    trace = llm.engine.step()
    assert {item["request_id"] for item in trace.scheduled} == {"x", "y"}


def test_a_recorded_run_with_forks_replays(folder: Path, tmp_path: Path) -> None:
    llm = open_llm(folder, num_kv_blocks=8)
    with llm.engine.record(tmp_path / "run.jsonl"):
        llm.generate([PROMPT, [3]], params(n=3, logit_bias={4: 1.0}), use_tqdm=False)
    steps = list(replay(tmp_path / "run.jsonl"))
    assert steps and not any(step.differences() for step in steps)


def test_ids_of_forks_are_taken_too(llm: LLM) -> None:
    llm.engine.add_request([1, 2], params(), "x.1")
    with pytest.raises(UsageError, match=r"'x\.1' is in use"):
        llm.engine.add_request([1, 2], params(n=2), "x")
    assert list(llm.engine.requests) == ["x.1"]
    llm.engine.abort("x.1")
    assert_empty(llm)


@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("blocks", [64, 6])
def test_logprobs_are_the_models_own(folder: Path, budget: int, blocks: int) -> None:
    """Complete under chunks and preemption, and equal to a log-softmax over the logits of the whole text."""
    llm = open_llm(folder, max_num_batched_tokens=budget, num_kv_blocks=blocks)
    wanted = params(logprobs=3, prompt_logprobs=2, temperature=0.7, repetition_penalty=1.2)
    outputs = llm.generate([PROMPT, PROMPT[:1], PROMPT[3:]], wanted, use_tqdm=False)
    for output in outputs:
        prompt, answer = output.prompt_token_ids, output.token_ids
        scores = llm.runner.logits(prompt + answer).log_softmax(-1)
        assert output.prompt_logprobs is not None and output.logprobs is not None
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
        assert len(output.logprobs) == len(answer)
        told = [*zip(prompt[1:], output.prompt_logprobs[1:], strict=True), *zip(answer, output.logprobs, strict=True)]
        for position, (token, found) in enumerate(told):
            row = scores[position]
            num_top = 2 if position < len(prompt) - 1 else 3
            assert found is not None and set(found) == {token, *row.topk(num_top).indices.tolist()}
            for one, (logprob, rank) in found.items():
                assert logprob == pytest.approx(row[one].item(), abs=1e-4)
                assert rank == 1 + int((row > row[one]).sum()) or torch.isclose(row, row[one], atol=1e-4).sum() > 1
    assert_empty(llm)


def test_logprobs_are_none_unless_asked_for_and_zero_means_the_token_alone(llm: LLM) -> None:
    [plain] = llm.generate([PROMPT], params(), use_tqdm=False)
    assert plain.logprobs is None and plain.prompt_logprobs is None
    [bare] = llm.generate([PROMPT], params(logprobs=0), use_tqdm=False)
    assert bare.logprobs is not None
    assert (
        [list(found) for found in bare.logprobs]
        == [[token] for token in bare.token_ids]
        == [[t] for t in plain.token_ids]
    )


def test_what_needs_more_than_the_model_has_is_refused(llm: LLM) -> None:
    for options, words in (
        ({"stop": "x"}, "needs a tokenizer"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias: token id 1000000 is out of range"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids: token id 1000000 is out of range"),
    ):
        with pytest.raises(UsageError, match=words):
            llm.generate([PROMPT], params(**options), use_tqdm=False)
    assert_empty(llm)
