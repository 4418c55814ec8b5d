"""What `Engine.add_request` takes: every argument of the wrong kind is refused by name, and nothing is left behind."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.paged_fake import VOCAB_SIZE, greedy, open_engine
from workbench.engine.engine import Engine
from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams

HUGE = 10**400
UNWRITABLE = 10**5000


def refused(engine: Engine, words: str, prompt: Any = (1,), **arguments: Any) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        engine.add_request(prompt, **arguments)
    told = str(caught.value)
    assert "\n" not in told and len(told) < 300, told
    assert not engine.requests and not engine.scheduler.waiting and engine.stats()["num_added"] == 0


@pytest.mark.parametrize(
    ("argument", "values", "words"),
    [
        ("params", [{}, {"n": 2}, 0, "greedy", SamplingParams, [SamplingParams()]], "params=.* must be a SamplingP"),
        ("request_id", ["", 0, 7, b"x", ["x"], True, 1.5], "request_id=.* must be text that is not empty"),
        ("tenant", [0, 1, b"x", [], True], "tenant=.* must be text"),
        ("tenant", ["a", ""], "tenant=.* is not supported yet"),
        ("priority", [None, "1", 1.0, True, [1], math.nan], "priority=.* must be a whole number"),
        ("priority", [1, -1, numpy.int64(3), HUGE, UNWRITABLE], "priority=.* (has no effect without|must lie from)"),
        (
            "arrival_time",
            [math.nan, math.inf, -math.inf, HUGE, UNWRITABLE, "now", True, [1.0], 1j, Decimal(1), numpy.float32("inf")],
            "arrival_time=.* must be a finite number of seconds; None takes now",
        ),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(argument: str, values: list[Any], words: str) -> None:
    engine = open_engine()
    for value in values:
        refused(engine, words, **{argument: value})


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([1, True], "position 1 of the prompt: True is no token id; a prompt is text or a list of token ids"),
        ([1, 2, 3.0], r"position 2 of the prompt: 3\.0 is no token id"),
        ([1, "2"], "position 1 of the prompt: '2' is no token id"),
        ([1, None], "position 1 of the prompt: None is no token id"),
        ([1, [2, 3]], r"position 1 of the prompt: \[2, 3\] is no token id"),
        ([[1, 2], [3]], r"position 0 of the prompt: \[1, 2\] is no token id"),
        ([numpy.float32(1)], "position 0 of the prompt: .* is no token id"),
        ([numpy.bool_(True)], "position 0 of the prompt: .* is no token id"),
        (numpy.array([[1, 2], [3, 4]]), "position 0 of the prompt: .* is no token id"),
        (numpy.array([1.5]), "position 0 of the prompt"),
        ([1, VOCAB_SIZE], "position 1 of the prompt: token id 40 is out of range; the vocabulary has 40 tokens"),
        ([1, -1], "position 1 of the prompt: token id -1 is out of range"),
        ([UNWRITABLE], "position 0 of the prompt: token id .* is out of range"),
        ((token for token in (1, "x")), "position 1 of the prompt: 'x' is no token id"),
        (b"ab", "a prompt is text or a list of token ids, not a bytes"),
        ({1: 2}, "not a dict"),
        ({1, 2}, "not a set"),
        (None, "not a NoneType"),
        (7, "not a int"),
        (numpy.array(7), "not a ndarray"),
        ([], "the prompt is empty"),
    ],
)
def test_prompts_of_what_is_no_token_are_refused_with_their_position(prompt: Any, words: str) -> None:
    refused(open_engine(), words, prompt)


@pytest.mark.parametrize(
    "prompt", [numpy.array([1, 2]), [numpy.int8(1), numpy.uint64(2)], (1, 2), range(1, 3), iter([1, 2])]
)
def test_whole_numbers_of_any_kind_are_token_ids(prompt: Any) -> None:
    engine = open_engine()
    request = engine.requests[engine.add_request(prompt, greedy(2), arrival_time=numpy.float32(0.5))]
    assert request.prompt_token_ids == [1, 2] and {type(token) for token in request.token_ids} == {int}
    assert request.arrival_time == 0.5 and type(request.arrival_time) is float
    while engine.has_unfinished():
        assert engine.step().to_json(), "plain numbers, so the trace is JSON"


def test_a_derived_seed_is_a_seed_that_may_be_given() -> None:
    """A recording tells it, and its replay gives it back."""
    engine = open_engine(seed=2**63 - 1)
    engine.add_request([1], SamplingParams())
    request = engine.requests[engine.add_request([1], SamplingParams(), "x")]
    assert SamplingParams(seed=request.seed).seed == request.seed


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.one_of(st.integers(-2, 50), st.integers(), st.floats(), st.booleans(), st.none(), st.binary(max_size=2)),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=6,
    )
)
def test_any_prompt_is_taken_or_refused(prompt: Any) -> None:
    engine = open_engine()
    try:
        request = engine.requests[engine.add_request(prompt, greedy(1))]
    except UsageError as error:
        assert "\n" not in str(error)
        assert not engine.requests
    else:
        assert request.prompt_token_ids == prompt and not any(isinstance(token, bool) for token in prompt)
