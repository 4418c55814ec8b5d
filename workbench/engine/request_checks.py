"""The arguments of `Engine.add_request`, checked once at the edge; a refusal names value, limit and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

from workbench.checks import as_real, as_whole, shown
from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams


def check_arguments(params: Any, request_id: Any, tenant: Any, priority: Any, arrival_time: Any) -> None:
    """Raises UsageError for an argument of the wrong kind, or one that is not built yet."""
    if not isinstance(params, SamplingParams):
        raise UsageError(f"params={shown(params)} must be a SamplingParams, not a {type(params).__name__}")
    if request_id is not None and (not isinstance(request_id, str) or not request_id):
        raise UsageError(f"request_id={shown(request_id)} must be text that is not empty; None takes the next number")
    if tenant is not None and not isinstance(tenant, str):
        raise UsageError(f"tenant={shown(tenant)} must be text, not a {type(tenant).__name__}")
    if as_whole(priority) is None:
        raise UsageError(f"priority={shown(priority)} must be a whole number, not a {type(priority).__name__}")
    if arrival_time is not None and not math.isfinite(math.nan if (at := as_real(arrival_time)) is None else at):
        raise UsageError(f"arrival_time={shown(arrival_time)} must be a finite number of seconds; None takes now")
    if tenant is not None:
        raise UsageError(f"tenant={shown(tenant)} is not supported yet; leave it out")


def check_cache_salt(cache_salt: Any, caching: bool) -> None:
    """Raises UsageError for a salt that is no text, or where nothing is cached."""
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise UsageError(f"cache_salt={shown(cache_salt)} must be text, not a {type(cache_salt).__name__}")
    if cache_salt and not caching:
        raise UsageError(
            f"cache_salt={shown(cache_salt)} has no effect without enable_prefix_caching=True: leave it out or set that"
        )
    if cache_salt:
        _require_unicode("cache_salt", cache_salt)


def check_kv_fields(fields: Mapping[str, Any]) -> None:
    """Raises UsageError for a field that is no text."""
    for name, value in fields.items():
        if not isinstance(value, str):
            raise UsageError(f"kv_fields: {name}={shown(value)} must be text, not a {type(value).__name__}")
        _require_unicode(f"kv_fields: {name}", value)


def _require_unicode(name: str, text: str) -> None:
    """Half of a surrogate pair has no bytes, and a namespace is made of bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name}={shown(text)}: character {error.start} is half of a surrogate pair; give valid Unicode"
        ) from None


def check_params(params: SamplingParams, vocab_size: int | None, has_text: bool) -> None:
    """Raises UsageError for stop strings where there is no text, and for token ids outside the vocabulary."""
    if params.stop and not has_text:
        raise UsageError(f"stop={params.stop!r} needs a tokenizer and this model came without one: use stop_token_ids")
    for name in ("logit_bias", "stop_token_ids"):
        for token_id in getattr(params, name) or ():
            if vocab_size is not None and token_id >= vocab_size:
                raise UsageError(f"{name}: token id {token_id} is out of range; the vocabulary has {vocab_size}")


def checked_token_ids(prompt: Any, vocab_size: int | None, most: int | None = None) -> list[int]:
    """The token ids of a prompt that is not text, as plain ints. Raises UsageError that names the position.

    ``most``: the largest id that a prefix index can hold.
    """
    found: list[int] = []
    for place, item in enumerate(_items(prompt)):
        token_id = as_whole(item)
        where = f"position {place} of the prompt"
        if token_id is None:
            raise UsageError(f"{where}: {shown(item)} is no token id; a prompt is text or a list of token ids")
        if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
            limit = "" if vocab_size is None else f"; the vocabulary has {vocab_size} tokens"
            raise UsageError(f"{where}: token id {shown(token_id)} is out of range{limit}")
        if most is not None and token_id > most:
            raise UsageError(f"{where}: token id {token_id} is too large for prefix caching, which goes up to {most}")
        found.append(token_id)
    return found


def _items(prompt: Any) -> list[Any]:
    """Bytes and sets could be looped over too, but are not what was meant."""
    if not isinstance(prompt, (bytes, bytearray, memoryview, Mapping, Set)):
        try:
            return list(prompt)
        except TypeError:
            pass
    raise UsageError(f"a prompt is text or a list of token ids, not a {type(prompt).__name__}: {shown(prompt)}")
