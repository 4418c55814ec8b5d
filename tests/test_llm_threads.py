"""One LLM shared by threads: they take turns, and each gets the answers it would get alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.model.tiny import make_tiny
from tests.text.tokenizers_made import MADE, load
from tests.tiny_llm import GREEDY, PROMPTS, assert_empty, open_llm, tokens
from workbench import LLM, SamplingParams
from workbench.plan import StepPlan, StepResult


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path = tmp_path_factory.mktemp("talker")
    tokenizer = load(path, next(iter(MADE)))
    make_tiny("smollm2", path, seed=2, vocab_size=max(211, tokenizer.vocab_size))
    return open_llm(path)


@pytest.fixture
def llm(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """Every step waits long enough for another thread to come in between, and says so if one did."""
    execute, inside = shared.runner.execute, threading.Semaphore(1)

    def alone(plan: StepPlan) -> StepResult:
        assert inside.acquire(blocking=False), "two threads are in one engine at once"
        try:
            time.sleep(0.002)
            return execute(plan)
        finally:
            inside.release()

    monkeypatch.setattr(shared.runner, "execute", alone)
    yield shared
    assert_empty(shared)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What the calls return, each from a thread of its own, all begun at once."""
    found: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(index: int) -> None:
        start.wait()
        try:
            found[index] = calls[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits forever"
    return found


def test_two_threads_generate(llm: LLM) -> None:
    alone = [tokens(llm, PROMPTS), tokens(llm, PROMPTS[::-1])]
    for _ in range(3):
        both = together(lambda: tokens(llm, PROMPTS), lambda: tokens(llm, PROMPTS[::-1]))
        assert both == alone


def test_a_reset_of_the_cache_waits_for_its_turn(llm: LLM) -> None:
    """It never falls into a step, between planning and publishing."""
    resets = threading.Thread(target=llm.reset_prefix_cache)
    waited: list[bool] = []

    def begin(trace: object) -> None:
        if not waited:
            resets.start()
            resets.join(0.2)
            waited.append(resets.is_alive())

    llm.engine.listeners.append(begin)
    try:
        tokens(llm)
    finally:
        llm.engine.listeners.remove(begin)
    resets.join(60)
    assert waited == [True] and not resets.is_alive()
    assert llm.engine.pool.num_free == llm.engine.pool.num_blocks, "once the answers were complete"


def test_a_wrong_call_lets_the_next_one_in(llm: LLM) -> None:
    wrong, right = together(lambda: tokens(llm, [[10**9]]), lambda: tokens(llm))
    assert isinstance(wrong, ValueError) and right == tokens(llm)


def test_streams_and_generate_side_by_side(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True)
    whole = llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].text
    first, second, answers = together(
        lambda: "".join(llm.stream([5, 6, 7], params)),
        lambda: "".join(llm.stream([5, 6, 7], params)),
        lambda: tokens(llm),
    )
    assert first == second == whole != ""
    assert answers == tokens(llm)


def test_a_stream_given_up_in_one_thread_leaves_the_other_alone(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True)

    def give_up() -> None:
        pieces = llm.stream([5, 6, 7], params)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]

    gone, answers = together(give_up, lambda: tokens(llm))
    assert gone is None and answers == tokens(llm)


def test_the_same_thread_may_generate_while_it_reads_a_stream(llm: LLM) -> None:
    pieces = llm.stream([5, 6, 7], SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True))
    next(pieces)
    assert tokens(llm, PROMPTS[:1], GREEDY) == tokens(llm, PROMPTS)[:1]
    list(pieces)
