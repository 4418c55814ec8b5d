"""SamplingParams: how the tokens of one request are chosen and when it ends, under vLLM's names. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from workbench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request. ``temperature=0`` is greedy; ``top_k`` 0 or −1 means all tokens; ``max_tokens=None``
    means up to the context limit. The sampled token is a function of (logits, seed, position) alone, so neighbours in
    the batch, chunking and preemption cannot change it."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _integer(self, "n", 1)
        _number(self, "temperature", 0.0, math.inf, "0 is greedy")
        _number(self, "top_p", 0.0, 1.0, "1 keeps every token", open_low=True)
        _integer(self, "top_k", -1, "0 or -1 keeps every token")
        _number(self, "min_p", 0.0, 1.0, "0 keeps every token")
        _number(self, "presence_penalty", -2.0, 2.0, "0 is none")
        _number(self, "frequency_penalty", -2.0, 2.0, "0 is none")
        _number(self, "repetition_penalty", 0.0, math.inf, "1 is none", open_low=True)
        _integer(self, "min_tokens", 0)
        for name in ("seed", "logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(self, name, 0)
        if self.max_tokens is not None:
            _integer(self, "max_tokens", 1, "None means up to the context limit")
            if self.min_tokens > self.max_tokens:
                raise UsageError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        _logit_bias(self.logit_bias)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} must be True or False")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_dict(self) -> dict[str, Any]:
        """The options that differ from their defaults, JSON-ready."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _DEFAULTS[f.name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> SamplingParams:
        """The inverse of `to_dict`, also after JSON has turned the token ids of ``logit_bias`` into text."""
        bias = options.get("logit_bias")
        fixed = {"logit_bias": {int(token): value for token, value in bias.items()}} if bias else {}
        return cls(**{**options, **fixed})


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams)}


def _stop_strings(stop: Any) -> tuple[str, ...]:
    listed = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and one for one in listed):
        raise UsageError(f"stop={stop!r} must be text that is not empty, or a list of such")
    return tuple(listed)


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    listed = () if ids is None else ids
    if not isinstance(listed, (list, tuple, range)) or not all(
        isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in listed
    ):
        raise UsageError(f"{name}={ids!r} must be a list of token ids")
    return tuple(listed)


def _logit_bias(bias: Any) -> None:
    if bias is None:
        return
    if not isinstance(bias, dict):
        raise UsageError(f"logit_bias={bias!r} must be a dict of token id to a number")
    _token_ids("logit_bias", list(bias))
    for token, value in bias.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -100 <= value <= 100:
            raise UsageError(f"logit_bias[{token}]={value!r} must be a number from -100 to 100")


def _number(params: SamplingParams, name: str, low: float, high: float, note: str, open_low: bool = False) -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise UsageError(f"{name}={value!r} must be a number")
    if value < low or value > high or (open_low and value == low) or math.isinf(value):
        edge = "above" if open_low else "at least"
        limit = "" if math.isinf(high) else f" and at most {high:g}"
        raise UsageError(f"{name}={value!r} must be {edge} {low:g}{limit} ({note})")


def _integer(params: SamplingParams, name: str, low: int, note: str = "") -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}={value!r} must be a whole number")
    if value < low:
        raise UsageError(f"{name}={value!r} must be at least {low}" + (f" ({note})" if note else ""))
