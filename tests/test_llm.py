"""LLM: generate, chat and stream agree, refuse what is wrong, and leave an empty engine however they end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import workbench
from tests.model.tiny import make_tiny
from tests.text.tokenizers_made import CORPUS
from tests.tiny_llm import GREEDY, PROMPTS, assert_empty, open_llm, tokens
from workbench import LLM, SamplingParams
from workbench.engine.clock import VirtualClock
from workbench.errors import UsageError
from workbench.plan import StepPlan, StepResult

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a byte-level tokenizer and a chat template; its random answers break inside characters."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("worded")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")
    fast.chat_template = TEMPLATE
    make_tiny("smollm2", path, seed=2, vocab_size=len(fast))
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def shared(folder: Path) -> LLM:
    return open_llm(folder)


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """One engine for many tests: each must leave it empty."""
    assert_empty(shared)
    yield shared
    assert_empty(shared)


@pytest.fixture(scope="module")
def talker(worded: Path) -> LLM:
    return open_llm(worded)


# Generate.


def test_results_stand_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 1, 4)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert [len(output.token_ids) for output in outputs] == [9, 1, 4]
    assert [output.finish_reason for output in outputs] == ["length"] * 3
    assert len({output.request_id for output in outputs}) == 3
    assert tokens(llm, PROMPTS[::-1]) == tokens(llm)[::-1]


def test_one_prompt_may_stand_alone(llm: LLM) -> None:
    assert tokens(llm, PROMPTS[0]) == tokens(llm, [PROMPTS[0]]) == tokens(llm)[:1]


def test_nothing_asked_nothing_done(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_two_calls_in_a_row_agree(llm: LLM) -> None:
    assert tokens(llm) == tokens(llm)


def test_without_a_tokenizer_there_is_no_text(llm: LLM) -> None:
    [output] = llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)
    assert output.text == "" and len(output.token_ids) == 6
    for call in (lambda: llm.generate("text"), lambda: llm.generate(["text"])):
        with pytest.raises(UsageError, match="text prompt needs a tokenizer"):
            call()
    with pytest.raises(UsageError, match="stream gives text and this model came without a tokenizer"):
        llm.stream([1, 2])
    with pytest.raises(UsageError, match="chat needs a tokenizer"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_the_end_of_sequence_comes_from_the_config(folder: Path) -> None:
    """With the answer's second token as its end of sequence, the model stops there."""
    llm = open_llm(folder)
    [answer] = tokens(llm, PROMPTS[:1])
    llm.engine._eos_token_ids = (answer[1],)
    [output] = llm.generate(PROMPTS[:1], SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    assert (output.token_ids, output.finish_reason) == (answer[: answer.index(answer[1]) + 1], "stop")
    assert open_llm(folder).engine._eos_token_ids == (2,)


@pytest.mark.parametrize("bad", [[], [1] * 600, [10**6], [1] * 300])
def test_one_impossible_prompt_stops_all_before_any_runs(llm: LLM, bad: list[int]) -> None:
    steps = llm.engine.stats()["num_steps"]
    with pytest.raises(UsageError):
        llm.generate([*PROMPTS, bad], SamplingParams(max_tokens=6), use_tqdm=False)
    assert llm.engine.stats()["num_steps"] == steps
    assert_empty(llm)
    assert len(tokens(llm)) == 3


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(UsageError, match="2 SamplingParams for 3 prompts"):
        llm.generate(PROMPTS, [GREEDY, GREEDY], use_tqdm=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_interrupt_leaves_the_pool_empty_and_the_llm_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], at: int
) -> None:
    expected = tokens(llm)
    execute, calls = llm.runner.execute, iter(range(100))

    def interrupted(plan: StepPlan) -> StepResult:
        if next(calls) == at:
            raise error
        return execute(plan)

    monkeypatch.setattr(llm.runner, "execute", interrupted)
    with pytest.raises(error):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert_empty(llm)
    assert tokens(llm) == expected


@pytest.mark.parametrize("at", [*range(1, 400, 7), *range(400, 2000, 31)])
def test_ctrl_c_at_any_line_of_the_bookkeeping_leaves_the_engine_whole(llm: LLM, at: int) -> None:
    """SIGINT at one line after the other of engine, scheduler and pool: never a leaked block or a lost request."""
    rooms = tuple(str(Path(workbench.__file__).parent / room) for room in ("engine", "kv"))
    count = 0

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(rooms):
            return None
        count += event == "line"
        if count == at and event == "line":
            signal.raise_signal(signal.SIGINT)
        return tracer

    # A process that was started in the background ignores SIGINT; Python then has no handler for it.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        answers = tokens(llm)
    except KeyboardInterrupt:
        answers = None
    finally:
        sys.settrace(before)
        restored = signal.signal(signal.SIGINT, inherited)
    assert answers is None or count < at, "an interrupt must not be swallowed"
    assert restored is signal.default_int_handler
    assert_empty(llm)


def test_an_interrupt_spares_what_others_have_queued(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    other = llm.engine.add_request([3, 4], GREEDY, "other")

    def interrupted(plan: StepPlan) -> StepResult:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert list(llm.engine.requests) == [other]
    while llm.engine.has_unfinished():
        llm.engine.step()


def test_requests_of_others_go_along(llm: LLM) -> None:
    llm.engine.add_request([3, 4], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), "other")
    assert [len(answer) for answer in tokens(llm)] == [6, 6, 6]
    assert "other" not in llm.engine.requests


def test_metrics_under_a_virtual_clock(folder: Path) -> None:
    clock = VirtualClock()
    llm = open_llm(folder, clock=clock, max_num_batched_tokens=4)
    llm.engine.listeners.append(lambda trace: clock.advance(0.5))
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    first, second = llm.generate([[5, 6, 7], [8] * 6], [GREEDY, one], use_tqdm=False)
    # Steps begin at 0, 0.5, 1 …: the first prompt is whole in step 0 and the second in step 2.
    assert (first.metrics.queue, first.metrics.ttft, first.metrics.tpot, first.metrics.e2e) == (0.0, 0.0, 0.5, 2.5)
    assert (second.metrics.queue, second.metrics.ttft, second.metrics.tpot, second.metrics.e2e) == (0.0, 1.0, None, 1.0)
    told = first.to_dict()
    assert set(told) == {
        "request_id", "prompt_token_ids", "token_ids", "text", "finish_reason", "num_cached_tokens", "metrics"
    }  # fmt: skip
    assert {"ttft": 0.0, "tpot": 0.5, "e2e": 2.5}.items() <= told["metrics"].items()


def test_metrics_under_a_real_clock_are_in_order(llm: LLM) -> None:
    for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False):
        metrics = output.metrics
        assert metrics.tpot is not None and metrics.ttft is not None
        assert 0 <= metrics.queue <= metrics.ttft <= metrics.e2e < 60
        assert metrics.e2e == pytest.approx(metrics.ttft + 5 * metrics.tpot)


def test_phases_of_a_step_fill_it(llm: LLM) -> None:
    llm.engine.add_request([1, 2, 3], GREEDY)
    trace = llm.engine.step()
    assert all(seconds >= 0 for seconds in trace.phases.values())
    assert 0.5 * trace.duration < sum(trace.phases.values()) <= trace.duration
    assert trace.flops > 0 and trace.bytes > llm.runner.cost.weight_bytes > 0
    while llm.engine.has_unfinished():
        llm.engine.step()


# Stream and chat.

TALK = [{"role": "user", "content": "안녕하세요, the quick brown fox?"}]
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True)


@pytest.mark.parametrize("seed", range(4))
def test_stream_generate_and_chat_agree(talker: LLM, seed: int) -> None:
    """Random tokens of a byte-level tokenizer are full of broken characters, so this is not the easy case."""
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=60, ignore_eos=True)
    [output] = talker.generate(["the quick brown"], params, use_tqdm=False)
    pieces = list(talker.stream("the quick brown", params))
    assert "".join(pieces) == output.text != ""
    assert len(pieces) > 10 and all(pieces)
    assert "\N{REPLACEMENT CHARACTER}" in output.text
    [answer] = talker.chat(TALK, params, use_tqdm=False)
    assert "".join(talker.stream(TALK, params)) == answer.text
    assert [o.token_ids for o in talker.chat([TALK, TALK], params, use_tqdm=False)] == [answer.token_ids] * 2
    assert_empty(talker)


def test_chat_lays_out_by_the_template(talker: LLM) -> None:
    assert talker.tokenizer is not None
    [answer] = talker.chat(TALK, SAMPLED, use_tqdm=False)
    laid_out = f"<|user|>{TALK[0]['content']}<|assistant|>"
    assert talker.tokenizer.decode(answer.prompt_token_ids, skip_special_tokens=False) == laid_out


def test_text_and_its_ids_are_the_same_prompt(talker: LLM) -> None:
    assert talker.tokenizer is not None
    text = "don't panic"
    both = talker.generate([text, talker.tokenizer.encode(text)], SAMPLED, use_tqdm=False)
    assert both[0].prompt_token_ids == both[1].prompt_token_ids and both[0].token_ids == both[1].token_ids


def test_closing_a_stream_early_frees_its_blocks(talker: LLM) -> None:
    stream = talker.stream("the", SAMPLED)
    next(stream)
    assert talker.engine.pool.num_free < talker.engine.pool.num_blocks
    stream.close()
    assert_empty(talker)
    for _ in talker.stream("the", SAMPLED):
        break
    assert_empty(talker)


def test_a_stream_that_nobody_starts_leaves_nothing(talker: LLM) -> None:
    stream = talker.stream("the", SAMPLED)
    assert_empty(talker)
    stream.close()
    assert_empty(talker)


def test_an_impossible_stream_is_refused_and_leaves_nothing(talker: LLM) -> None:
    for prompt in ("", [1] * 600):
        with pytest.raises(UsageError):
            list(talker.stream(prompt, SAMPLED))
        assert_empty(talker)


def test_an_interrupted_stream_leaves_nothing(talker: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: StepPlan) -> StepResult:
        raise KeyboardInterrupt

    stream = talker.stream("the", SAMPLED)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(talker.runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert_empty(talker)


def test_streams_side_by_side_each_give_their_whole_text(talker: LLM) -> None:
    """Each steps the engine for both, so one may end while the other is at work."""
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=count) for seed, count in ((1, 12), (2, 30))]
    texts = [output.text for output in talker.generate(["the", "a  b"], params, use_tqdm=False)]
    for order in ((0, 1), (1, 0)):
        streams = [talker.stream(("the", "a  b")[i], params[i]) for i in (0, 1)]
        begun = {i: next(streams[i]) for i in order}
        # The first of them runs to its end; the other's tokens came on the way.
        for i in order:
            begun[i] += "".join(streams[i])
        assert [begun[0], begun[1]] == texts
    assert_empty(talker)


def test_a_generate_in_the_middle_of_a_stream(talker: LLM) -> None:
    [whole] = talker.generate(["the"], SAMPLED, use_tqdm=False)
    stream = talker.stream("the", SAMPLED)
    text = next(stream)
    talker.generate(["a  b"], SAMPLED, use_tqdm=False)
    assert text + "".join(stream) == whole.text
    assert_empty(talker)


def test_logits_of_a_prompt_touch_no_pool(llm: LLM) -> None:
    logits = llm.runner.logits([5, 6, 7])
    assert logits.shape == (3, llm.model_config.vocab_size) and logits.dtype is torch.float32
    [answer] = tokens(llm, [[5, 6, 7]])
    assert logits[-1].argmax().item() == answer[0]


@pytest.mark.slow
def test_the_default_model_streams_and_chats() -> None:
    """SmolLM2 with its own tokenizer and chat template: pieces join to the text, Korean included."""
    llm = LLM(num_kv_blocks=64)
    params = SamplingParams(temperature=0, max_tokens=24)
    for prompt in ("The capital of France is", "안녕하세요"):
        [output] = llm.generate([prompt], params, use_tqdm=False)
        assert "".join(llm.stream(prompt, params)) == output.text
    assert "Paris" in llm.generate(["The capital of France is"], params, use_tqdm=False)[0].text
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    [answer] = llm.chat(talk, params, use_tqdm=False)
    assert "Paris" in answer.text and "".join(llm.stream(talk, params)) == answer.text
    assert_empty(llm)
