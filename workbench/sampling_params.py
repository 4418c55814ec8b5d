"""SamplingParams: how the tokens of one request are chosen and when it ends, under vLLM's names. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from workbench.checks import MAX_WHOLE, as_real, as_whole, shown
from workbench.errors import UsageError

MAX_SEED = 2**64 - 1
"""A seed is 64 bits: a larger one would give the numbers of a smaller one."""
MAX_ANSWERS = 16_384
"""Most answers to one prompt (``n``): each is a request of its own."""


def _whole(default: int | None, least: int, most: int = MAX_WHOLE, note: str = "") -> Any:
    """A field for a whole number from ``least`` to ``most``."""
    return field(default=default, metadata={"kind": "whole", "least": least, "most": most, "note": note})


def _number(default: float, least: float, most: float, note: str, above: bool = False) -> Any:
    """A field for a finite number from ``least`` (``above``: but not ``least`` itself) to ``most``."""
    return field(
        default=default, metadata={"kind": "number", "least": least, "most": most, "note": note, "above": above}
    )


def _flag(default: bool) -> Any:
    return field(default=default, metadata={"kind": "flag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request. ``temperature=0`` is greedy; ``top_k`` 0 or −1 means all tokens; ``max_tokens=None``
    means up to the context limit. The sampled token is a function of (logits, seed, position) alone, so neighbours in
    the batch, chunking and preemption cannot change it. Numbers may be of any kind (numpy's too) and are kept as int
    and float. Raises UsageError (a ValueError) that names the value, the limit and the remedy."""

    n: int = _whole(1, 1, MAX_ANSWERS, "answers to each prompt")
    temperature: float = _number(1.0, 0.0, math.inf, "0 is greedy")
    top_p: float = _number(1.0, 0.0, 1.0, "1 keeps every token", above=True)
    top_k: int = _whole(0, -1, note="0 or -1 keeps every token")
    min_p: float = _number(0.0, 0.0, 1.0, "0 keeps every token")
    presence_penalty: float = _number(0.0, -2.0, 2.0, "0 is none")
    frequency_penalty: float = _number(0.0, -2.0, 2.0, "0 is none")
    # Beyond these a logit leaves the range of float32, and nothing could be compared any more.
    repetition_penalty: float = _number(1.0, 0.01, 100.0, "1 is none")
    logit_bias: dict[int, float] | None = None
    seed: int | None = _whole(None, 0, MAX_SEED, "None takes the engine's")
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = _flag(False)
    ignore_eos: bool = _flag(False)
    min_tokens: int = _whole(0, 0, note="0 is no least")
    max_tokens: int | None = _whole(16, 1, note="None means up to the context limit")
    logprobs: int | None = _whole(None, 0, note="None is none; 0 the token alone")
    prompt_logprobs: int | None = _whole(None, 0, note="None is none; 0 the token alone")
    skip_special_tokens: bool = _flag(True)

    def __post_init__(self) -> None:
        for spec in fields(self):
            if "kind" in spec.metadata:
                value = getattr(self, spec.name)
                checked = (
                    None if value is None and "None" in str(spec.type) else _checked(spec.name, value, spec.metadata)
                )
                object.__setattr__(self, spec.name, checked)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: lower it or raise max_tokens"
            )
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_dict(self) -> dict[str, Any]:
        """The options that differ from their defaults, JSON-ready."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _DEFAULTS[f.name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> SamplingParams:
        """The inverse of `to_dict`, also after JSON has turned the token ids of ``logit_bias`` into text. Raises
        UsageError for an option that does not exist."""
        unknown = next((name for name in options if name not in _DEFAULTS), None)
        if unknown is not None:
            raise UsageError(f"unknown sampling option {shown(unknown)}; the options are {', '.join(_DEFAULTS)}")
        bias = options.get("logit_bias")
        fixed = (
            {"logit_bias": {_from_text(token): value for token, value in bias.items()}}
            if isinstance(bias, dict)
            else {}
        )
        return cls(**{**options, **fixed})


def _from_text(token: Any) -> Any:
    return int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 20 else token


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams)}


def _checked(name: str, value: Any, limits: Any) -> int | float | bool:
    """``value`` as a plain bool, int or float within its field's limits."""
    told = f"{name}={shown(value)}"
    if limits["kind"] == "flag":
        if not isinstance(value, bool):
            raise UsageError(f"{told} must be True or False")
        return value
    whole = limits["kind"] == "whole"
    number = as_whole(value) if whole else as_real(value)
    if number is None or number != number:  # only NaN differs from itself
        raise UsageError(f"{told} must be a {'whole ' * whole}number")
    least, most, above = limits["least"], limits["most"], limits.get("above", False)
    if number < least or number > most or (above and number == least) or number == math.inf:
        lower = f"{'above' if above else 'at least'} {least:g}"
        upper = "finite" if most == math.inf else f"at most {most if whole else format(most, 'g')}"
        note = f" ({limits['note']})" if limits["note"] else ""
        raise UsageError(f"{told} must be {lower} and {upper}{note}")
    return number


def _stop_strings(stop: Any) -> tuple[str, ...]:
    listed = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and one for one in listed):
        raise UsageError(f"stop={shown(stop)} must be text that is not empty, or a list of such")
    return tuple(listed)


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    listed = () if ids is None else ids
    found = [as_whole(one) for one in listed] if isinstance(listed, (list, tuple, range)) else [None]
    known = tuple(one for one in found if one is not None and 0 <= one <= MAX_WHOLE)
    if len(known) != len(found):
        raise UsageError(f"{name}={shown(ids)} must be a list of token ids")
    return known


def _logit_bias(bias: Any) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, dict):
        raise UsageError(f"logit_bias={shown(bias)} must be a dict of token id to a number")
    tokens = _token_ids("logit_bias", list(bias))
    values = [as_real(value) for value in bias.values()]
    for token, value, given in zip(tokens, values, bias.values(), strict=True):
        if value is None or not -100 <= value <= 100:
            raise UsageError(f"logit_bias[{token}]={shown(given)} must be a number from -100 to 100")
    return {token: value for token, value in zip(tokens, values, strict=True) if value is not None}
