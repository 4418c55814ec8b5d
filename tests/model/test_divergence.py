"""KL divergence against its definition, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.model.divergence import kl_divergence


def directly(p_logits, q_logits):
    """Mean over rows of Σ p · log(p / q), number by number."""
    rows = []
    for one, other in zip(p_logits, q_logits, strict=True):
        p = [math.exp(x) / math.fsum(math.exp(y) for y in one) for x in one]
        q = [math.exp(x) / math.fsum(math.exp(y) for y in other) for x in other]
        rows.append(math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return sum(rows) / len(rows)


@pytest.mark.parametrize("rows", [1, 64, 65, 130])
def test_kl_is_its_formula(rows):
    chance = np.random.default_rng(rows)
    p, q = (chance.normal(0, 3, (rows, 17)).astype(np.float32) for _ in range(2))
    assert kl_divergence(p, q) == pytest.approx(directly(p.tolist(), q.tolist()), rel=1e-9)
    assert kl_divergence(p, q) != pytest.approx(kl_divergence(q, p), rel=1e-3), "the order of the two matters"


def test_kl_knows_neither_an_offset_nor_overflow():
    p = np.array([[1000.0, 999.0, -1000.0]], dtype=np.float32)
    assert kl_divergence(p, p + 500) == pytest.approx(0, abs=1e-12)
    assert kl_divergence(p, p[:, ::-1]) == pytest.approx(2000 / (1 + math.exp(-1)), rel=1e-6)


def test_small_differences_are_not_lost():
    p = np.random.default_rng(0).normal(0, 3, (40, 49152)).astype(np.float32)
    q = p.copy()
    q[:, ::2] += np.float32(1e-3)
    # To second order: half the variance of the difference, here 1e-3 on about half of the probability.
    share = np.exp(p) / np.exp(p).sum(1, keepdims=True)
    half = share[:, ::2].sum(1)
    assert kl_divergence(p, q) == pytest.approx(float((half * (1 - half)).mean()) * 1e-6 / 2, rel=1e-2)


@pytest.mark.parametrize("bad", [np.zeros((2, 4)), np.zeros((3, 3)), np.full((2, 3), np.nan), np.full((2, 3), np.inf)])
def test_logits_that_cannot_be_compared_are_refused(bad):
    with pytest.raises(ValueError, match=r"cannot be compared|not finite"):
        kl_divergence(np.zeros((2, 3)), bad)
