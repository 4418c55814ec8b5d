"""How far a system's answers are from those of exact float32 weights and arithmetic: KL divergence, equal tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TEXT = (
    "A language model is served by a loop. In each turn of the loop a batch of requests goes through the network once, "
    "and every request that has caught up with its own text receives one more token. A prompt of a thousand words "
    "enters in a few large pieces; an answer leaves in small ones, a word or a part of a word at a time. The weights "
    "are read from memory in every turn, however many requests share it, and that is why a batch costs hardly more "
    "than a single reader. In the year 1854 the physician John Snow drew a map of the houses in Soho where people had "
    "died of cholera. The marks lay closest around the pump in Broad Street, and when its handle was taken off, the "
    "illness ended. He had counted before he explained. def mean(values): return sum(values) / len(values). The "
    "capital of France is Paris, that of Korea is Seoul, and 17 times 23 is 391. Water boils at one hundred degrees "
    "Celsius at sea level, but on a mountain of four thousand metres it boils at about eighty-six, so that beans take "
    "hours to become soft. Whoever cooks there uses a pot with a tight lid. The children had been told not to open the "
    "door, and of course they opened it. Behind it was a garden with a wall of red brick, three apple trees, and a cat "
    "that looked at them as if they were late. \"We were expected,\" said the smaller one, and went in. Dear Ms Park, "
    "thank you for your letter of 3 March. We have checked the invoice and found that the second item was charged "
    "twice; the amount of 48.50 euros will be returned to your account within ten days. Please excuse the mistake."
)  # fmt: skip
"""Prose, a fact, a line of code, numbers, a story and a letter: some 400 tokens, the same for every system."""


def kl_divergence(reference: Any, other: Any) -> float:
    """Mean over positions of KL(reference ‖ other) in nats, of logits ``[positions, vocab_size]``; float64 throughout.

    Raises ValueError for shapes that differ and for logits that are not finite.
    """
    if reference.shape != other.shape:
        raise ValueError(f"logits of shape {other.shape} cannot be compared with {reference.shape}")
    total = 0.0
    for start in range(0, len(reference), 64):  # a few rows at a time: 400 rows in float64 are some hundred MB
        p, q = (_log_softmax(rows[start : start + 64]) for rows in (reference, other))
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(reference)


def equal_top(reference: Any, other: Any) -> float:
    """The share of positions where both find the same token likeliest."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def equal_tokens(reference: Sequence[int], other: Sequence[int]) -> float:
    """The share of positions of two answers of one length where the tokens are equal."""
    return sum(a == b for a, b in zip(reference, other, strict=True)) / len(reference)


def _log_softmax(logits: Any) -> Any:
    rows = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise ValueError("logits are not finite")
    rows = rows - rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
