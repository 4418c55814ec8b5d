"""How far one model's next-token distributions are from another's."""

from __future__ import annotations

from typing import Any

import numpy as np


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


def _log_softmax(logits: Any) -> Any:
    rows = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise ValueError("logits are not finite")
    rows = rows - rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
