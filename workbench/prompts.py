"""What a caller hands over: prompts, conversations, and how each is to be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list. Raises UsageError for what is neither."""
    if not isinstance(prompts, (str, list, tuple, range)):
        salted = ": give its text or its ids, and its salt as cache_salt=" if isinstance(prompts, Mapping) else ""
        raise UsageError(f"prompts are text, token ids, or a list of such, not a {type(prompts).__name__}{salted}")
    # A list that begins with a number, even a wrong one, is one prompt of token ids.
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Number)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One for each of ``count`` prompts. Raises UsageError for another number, or for something else."""
    if params is None or isinstance(params, SamplingParams):
        return [SamplingParams() if params is None else params] * count
    if not isinstance(params, (list, tuple)) or not all(isinstance(one, SamplingParams) for one in params):
        raise UsageError(f"sampling_params={shown(params)} must be a SamplingParams or a list of them")
    if len(params) != count:
        raise UsageError(f"{len(params)} SamplingParams for {count} prompts: give one for all or one for each")
    return list(params)
