"""Where ranges come from: each observer by its definition, batches joined, padding left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.core import fake_quant, qparams
from workbench.quant.observers import OBSERVERS, Observer, Options, observe

WHOLE = QuantArgs(8, strategy="tensor", symmetric=False)


def test_extremes_of_each_group_with_zero_between():
    args = QuantArgs(4, group_size=32, symmetric=False)
    x = drawn(3, 64)
    x[1, :32] = x[1, :32].abs() + 1
    low, high = observe(x, args)
    grouped = x.reshape(3, 2, 32)
    assert torch.equal(low, grouped.amin(-1).clamp_max(0)) and torch.equal(high, grouped.amax(-1).clamp_min(0))
    assert low[1, 0] == 0


def test_percentiles_cut_off_what_numpy_says():
    x = drawn(1, 10_000)
    for percentile in (50.0, 99.0, 99.9):
        args = replace(WHOLE, observer="percentile")
        low, high = observe(x, args, Options(percentile=percentile))
        upper = [np.percentile(end, 50 + percentile / 2, method="inverted_cdf") for end in (-x.numpy(), x.numpy())]
        assert [-float(low), float(high)] == upper
    assert torch.equal(observe(x, args, Options(percentile=100.0))[1], x.amax().reshape(1, 1))


def test_an_outlier_widens_the_extremes_and_not_the_percentile():
    x = drawn(1, 4096)
    x[0, 17] = 500
    assert float(observe(x, WHOLE)[1]) == 500
    assert float(observe(x, replace(WHOLE, observer="percentile"))[1]) < 5


def test_least_error_is_the_best_of_all_cuts():
    """Found again by trying every cut on one row alone."""
    args = QuantArgs(3, strategy="channel", observer="mse")
    x = drawn(4, 256)
    low, high = observe(x, args)
    for row in range(4):
        errors = []
        for i in range(80):
            reach = x[row].abs().amax() * (1 - i / 100)
            step = reach / 3.5
            back = (x[row] / step).round().clamp(-4, 3) * step
            errors.append(float((back - x[row]).abs().pow(2.4).sum()))
        best = 1 - int(np.argmin(errors)) / 100
        assert float(torch.maximum(-low, high)[row, 0] / x[row].abs().amax()) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("bits", [3, 4])
def test_least_error_beats_the_extremes_at_few_bits(bits):
    x = drawn(64, 576)
    plain = QuantArgs(bits, strategy="channel")
    params = qparams(*observe(x, replace(plain, observer="mse")), plain)
    assert snr_db(x, fake_quant(x, plain, params)) > snr_db(x, fake_quant(x, plain)) + 0.5


def test_batches_are_joined():
    batches = [drawn(4, 16, seed=s) * (1 + s) for s in range(3)]
    ends = [(float(b.min()), float(b.max())) for b in batches]
    found = {}
    for name in ("minmax", "ema"):
        observer = Observer(replace(WHOLE, observer=name), Options(momentum=0.25))
        for batch in batches:
            observer.update(batch)
        found[name] = [float(end) for end in observer.range()]
    assert found["minmax"] == [min(low for low, _ in ends), max(high for _, high in ends)]
    low, high = ends[0]
    for next_low, next_high in ends[1:]:
        low, high = 0.75 * low + 0.25 * next_low, 0.75 * high + 0.25 * next_high
    assert found["ema"] == pytest.approx([low, high])


@pytest.mark.parametrize("name", OBSERVERS)
def test_padding_sets_no_range(name):
    x = drawn(2, 5, 16)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    padded = torch.where(mask[..., None], x, 1e6)
    seen, expected = Observer(replace(WHOLE, observer=name)), Observer(replace(WHOLE, observer=name))
    seen.update(padded, mask)
    expected.update(x[mask])
    assert seen.range() == expected.range()
    seen.update(torch.full((1, 3, 16), 1e9), torch.zeros(1, 3, dtype=torch.bool))
    assert seen.range() == expected.range(), "a batch of padding alone says nothing"


def test_refusals():
    with pytest.raises(UsageError, match="minmax, ema"):
        observe(drawn(2, 8), replace(WHOLE, observer="kl"))
    with pytest.raises(UsageError, match="down_proj: dynamic"):
        Observer(QuantArgs(8, strategy="token", dynamic=True), name="down_proj")
    with pytest.raises(UsageError, match="at least one token"):
        Observer(WHOLE).range()
    observer = Observer(WHOLE)
    observer.update(torch.tensor([[1.0, torch.inf]]))
    with pytest.raises(ValueError, match="not finite"):
        qparams(*observer.range(), WHOLE)
