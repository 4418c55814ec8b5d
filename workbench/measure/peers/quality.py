"""How often a system finds the tokens that exact float32 weights and arithmetic find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def equal_top(reference: Any, other: Any) -> float:
    """The share of positions where both find the same token likeliest."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def equal_tokens(reference: Sequence[int], other: Sequence[int]) -> float:
    """The share of positions of two answers of one length where the tokens are equal."""
    return sum(a == b for a, b in zip(reference, other, strict=True)) / len(reference)
