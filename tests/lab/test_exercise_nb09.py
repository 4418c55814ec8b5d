"""Notebook 09's exercises against the engine: the answers are the engine's own, and a function swapped in is used."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.quant.measured import drawn, snr_db
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb09 import TRIED
from workbench.quant import core
from workbench.quant.algorithms.rtn import rtn
from workbench.quant.args import QuantArgs
from workbench.quant.formats import E2M1, E4M3, E5M2, FloatFormat, decode, round_to
from workbench.quant.presets import preset

ROUND, CLIP = exercise("09", "round-to-grid"), exercise("09", "best-clip")
module = import_module("workbench.quant.algorithms.rtn")  # the package has a function of that name
ROWS4 = QuantArgs(4, strategy="channel", symmetric_range="narrow")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


@pytest.mark.parametrize("format", [E2M1, E4M3, E5M2], ids=lambda one: one.name)
@settings(deadline=None, max_examples=60)
@given(st.floats(-5e5, 5e5) | st.floats(-8, 8) | st.integers(-64, 64).map(lambda eighths: eighths / 8))
def test_rounding_is_the_engines_own(format: FloatFormat, x: float) -> None:
    magnitudes = decode(torch.arange(format.max_code + 1), format).tolist()
    own = float(round_to(torch.tensor(x, dtype=torch.float64), format))
    assert ROUND.function(x, magnitudes) == own == ROUND.reference(x, magnitudes)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8"])
def test_weights_are_rounded_by_the_readers_function(name: str) -> None:
    weight, args, own = drawn(4, 64), preset(name).weights, core.round_to
    before = rtn(weight, args)[0].dequantize()
    with ROUND.use(ROUND.function) as used:
        assert torch.equal(rtn(weight, args)[0].dequantize(), before)
    assert used.who == "your function" and used.calls == weight.numel() and core.round_to is own
    # That it is this function that counts: one that makes everything 1.
    with ROUND._swapped(lambda x, magnitudes: 1.0):
        assert torch.equal(rtn(weight, args)[0].q, torch.ones(4, 64))


def test_what_is_no_plain_rounding_stays_the_engines() -> None:
    with ROUND._swapped(lambda x, magnitudes: 0.0):
        assert float(core.round_to(torch.tensor(2.5), E2M1, "up")) == 3
        assert float(core.round_to(torch.tensor(2.5), FloatFormat("bf16", 8, 7))) == 2.5


def test_the_range_is_cut_where_the_readers_function_says() -> None:
    weight, own = drawn(5, 96), module.observe
    args = replace(ROWS4, observer="mse")
    whole = snr_db(weight, rtn(weight, ROWS4)[0].dequantize())
    with CLIP.use(CLIP.function) as used:
        made = rtn(weight, args)[0]
    assert used.who == "your function" and used.calls == 5 and module.observe is own
    assert snr_db(weight, made.dequantize()) > whole + 0.3
    for row in range(5):  # no other share would have lost less
        scales = [share * weight[row].abs().max() / 7 for share in TRIED]
        errors = [float((weight[row] - (weight[row] / s).round().clamp(-7, 7) * s).square().sum()) for s in scales]
        assert float(made.params.scale[row]) == pytest.approx(float(scales[errors.index(min(errors))]))
    with CLIP._swapped(lambda numbers, largest, shares: 0.5):
        halved = rtn(weight, args)[0].params.scale
    torch.testing.assert_close(halved, rtn(weight, ROWS4)[0].params.scale / 2)


def test_other_observers_and_floats_keep_the_engines_range() -> None:
    weight = drawn(3, 64)
    others = ROWS4, replace(preset("mxfp4").weights, observer="mse"), QuantArgs(4, group_size=32, symmetric=False)
    own = [rtn(weight, args)[0].params.scale for args in others]
    with CLIP._swapped(lambda numbers, largest, shares: 0.5):
        inside = [rtn(weight, args)[0].params.scale for args in others]
    assert all(torch.equal(a, b) for a, b in zip(own, inside, strict=True))


def test_a_block_of_zeros_asks_nobody() -> None:
    weight = drawn(2, 64)
    weight[1] = 0
    with CLIP.use(CLIP.function) as used:
        made = rtn(weight, replace(ROWS4, observer="mse"))[0].dequantize()
    assert used.calls == 1 and not made[1].any()
