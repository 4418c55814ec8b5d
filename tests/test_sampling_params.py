"""SamplingParams: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1 must be at least 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a number"),
        ({"temperature": float("inf")}, "temperature=inf must be at least 0"),
        ({"temperature": "hot"}, "temperature='hot' must be a number"),
        ({"temperature": True}, "temperature=True must be a number"),
        ({"top_p": 0}, "top_p=0 must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p=1.01 must be above 0 and at most 1"),
        ({"top_k": -2}, "top_k=-2 must be at least -1"),
        ({"top_k": 1.5}, "top_k=1.5 must be a whole number"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 1.0}, "seed=1.0 must be a whole number"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"max_tokens": True}, "max_tokens=True must be a whole number"),
        ({"min_tokens": -1}, "min_tokens=-1 must be at least 0"),
        ({"min_tokens": 17}, "min_tokens=17 is more than max_tokens=16"),
        ({"stop_token_ids": 5}, "stop_token_ids=5 must be a list of token ids"),
        ({"stop_token_ids": "ab"}, "stop_token_ids='ab' must be a list of token ids"),
        ({"stop_token_ids": [1, -1]}, "must be a list of token ids"),
        ({"stop_token_ids": [True]}, "must be a list of token ids"),
        ({"n": 0}, "n=0 must be at least 1"),
        ({"min_p": 1.5}, "min_p=1.5 must be at least 0 and at most 1"),
        ({"presence_penalty": 3}, "presence_penalty=3 must be at least -2 and at most 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan must be a number"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be at least 0.01 and at most 100"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias=.* must be a list of token ids"),
        ({"logit_bias": {1: 1e9}}, r"logit_bias\[1\]=.* must be a number from -100 to 100"),
        ({"logit_bias": [1]}, "must be a dict of token id to a number"),
        ({"stop": ""}, "must be text that is not empty"),
        ({"stop": ["x", 3]}, "must be text that is not empty"),
        ({"logprobs": -1}, "logprobs=-1 must be at least 0"),
        ({"prompt_logprobs": True}, "prompt_logprobs=True must be a whole number"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output=1 must be True or False"),
        ({"ignore_eos": 1}, "ignore_eos=1 must be True or False"),
        ({"skip_special_tokens": None}, "skip_special_tokens=None must be True or False"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingParams(**options)


def test_edges_are_taken() -> None:
    params = SamplingParams(temperature=0, top_p=1, top_k=-1, min_tokens=16, max_tokens=16, seed=0, stop_token_ids=[3])
    assert params.greedy and params.stop_token_ids == (3,)
    assert SamplingParams(max_tokens=None, min_tokens=10**6).max_tokens is None
    assert not SamplingParams(temperature=1e-9).greedy
    assert SamplingParams(stop=None, stop_token_ids=()) == SamplingParams()


def test_what_differs_from_the_defaults_makes_it_again() -> None:
    assert SamplingParams().to_dict() == {}
    params = SamplingParams(temperature=0.5, stop_token_ids=(4, 5), seed=3, max_tokens=None)
    assert params.to_dict() == {"temperature": 0.5, "stop_token_ids": [4, 5], "seed": 3, "max_tokens": None}
    assert SamplingParams(**params.to_dict()) == params


def test_it_is_frozen_and_takes_names_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().seed = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]


def test_to_dict_and_json_and_back() -> None:
    params = SamplingParams(n=2, logit_bias={7: -1.5}, stop="end", stop_token_ids=[3], logprobs=0, seed=4)
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert SamplingParams().to_dict() == {}
