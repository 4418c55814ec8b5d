"""What `generate`, `chat` and `stream` are given: a wrong prompt is named by its number and the place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.model.tiny import make_tiny
from tests.tiny_llm import GREEDY, PROMPTS, assert_empty, open_llm, tokens
from workbench import LLM, SamplingParams
from workbench.errors import UsageError


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path, seed=2)
    return open_llm(path)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[1], [2, True]], "prompt 1 of 2: position 1 of the prompt: True is no token id"),
        ([[1], [2, 3, 1.5], [4]], r"prompt 1 of 3: position 2 of the prompt: 1\.5 is no token id"),
        ([[1], [2, [3]]], r"prompt 1 of 2: position 1 of the prompt: \[3\] is no token id"),
        (
            [[1], [10**6]],
            "prompt 1 of 2: position 0 of the prompt: token id 1000000 is out of range; the vocabulary has",
        ),
        ([[1], []], "prompt 1 of 2: the prompt is empty"),
        ([[1], None], "prompt 1 of 2: a prompt is text or a list of token ids, not a NoneType"),
        ([[1], 5], "prompt 1 of 2: a prompt is text or a list of token ids, not a int"),
        ([[1], b"x"], "prompt 1 of 2: a prompt is text or a list of token ids, not a bytes"),
        ([[1], "text"], "prompt 1 of 2: a text prompt needs a tokenizer"),
        ([[1], [2] * 600], "prompt 1 of 2: the prompt has 600 tokens"),
        ([None, [1]], "prompt 0 of 2: "),
        ([1.5, 2], r"^position 0 of the prompt: 1\.5 is no token id"),
        ([True, 2], "^position 0 of the prompt: True is no token id"),
        ([1, "2"], "^position 1 of the prompt: '2' is no token id"),
        (5, "prompts are text, token ids, or a list of such, not a int"),
        ({"a": 1}, "not a dict: give its text or its ids, and its salt as cache_salt="),
    ],
)
def test_a_wrong_prompt_is_named_by_its_number(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert_empty(llm)


def test_token_ids_of_numpy_are_token_ids(llm: LLM) -> None:
    alone = tokens(llm, PROMPTS[0])
    assert tokens(llm, [numpy.int64(token) for token in PROMPTS[0]]) == alone
    assert tokens(llm, [numpy.array(PROMPTS[0])]) == alone
    assert tokens(llm, tuple(PROMPTS[0])) == alone


@pytest.mark.parametrize("params", [{}, {"n": 1}, 0, "greedy", [GREEDY, None], SamplingParams])
def test_wrong_sampling_params_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(UsageError, match=r"sampling_params=.* must be a SamplingParams or a list of them"):
        llm.generate(PROMPTS[:2], params, use_tqdm=False)


def test_wrong_arguments_of_chat_and_stream_are_refused(tmp_path: Path, llm: LLM) -> None:
    for messages in (5, None, "hello", {"role": "user"}):
        with pytest.raises(UsageError, match="messages are a list of"):
            llm.chat(messages)  # type: ignore[arg-type]
    llm.tokenizer = object()  # type: ignore[assignment]  # stream asks only whether there is one before it begins
    try:
        for params in ({}, 3, [GREEDY, GREEDY]):
            with pytest.raises(UsageError, match="SamplingParams"):
                llm.stream([1], params)  # type: ignore[arg-type]
        for prompt in (5, None, {"role": "user"}):
            with pytest.raises(UsageError, match="a prompt is text or a list of token ids"):
                list(llm.stream(prompt, GREEDY))  # type: ignore[arg-type]
    finally:
        llm.tokenizer = None
    assert_empty(llm)
