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
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in _UNBUILT:
            if getattr(self, name) != _DEFAULTS[name] and getattr(self, name) not in (None, [], ()):
                raise UsageError(f"SamplingParams.{name}={getattr(self, name)!r} is not supported yet; leave it out")
        _number(self, "temperature", 0.0, math.inf, "0 is greedy")
        _number(self, "top_p", 0.0, 1.0, "1 keeps every token", open_low=True)
        _integer(self, "top_k", -1, "0 or -1 keeps every token")
        _integer(self, "min_tokens", 0)
        if self.seed is not None:
            _integer(self, "seed", 0)
        if self.max_tokens is not None:
            _integer(self, "max_tokens", 1, "None means up to the context limit")
            if self.min_tokens > self.max_tokens:
                raise UsageError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        if isinstance(self.stop_token_ids, (str, int)) or not all(
            isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in self.stop_token_ids
        ):
            raise UsageError(f"stop_token_ids={self.stop_token_ids!r} must be a list of token ids")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} must be True or False")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_dict(self) -> dict[str, Any]:
        """The options that differ from their defaults, JSON-ready."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _DEFAULTS[f.name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams)}
_UNBUILT = (
    "n",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "include_stop_str_in_output",
    "logprobs",
    "prompt_logprobs",
)


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
