"""Notebook 10's exercises against the engine: the answers are its own, and a function swapped in is what it calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.compress import calibrate
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb10_cases import solved
from workbench.quant.algorithms import gptq
from workbench.quant.algorithms.gptq import compensate
from workbench.quant.args import QuantArgs
from workbench.quant.codecs import Gptq
from workbench.quant.codecs import words as packing
from workbench.quant.core import observed, qparams, quantize
from workbench.quant.stats import InputStats

GROUP, PACK, COMPENSATE = (exercise("10", name) for name in ("round-group", "pack", "compensate"))
W4 = QuantArgs(4, group_size=16, symmetric=False)


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def calibrated(width: int, tokens: int) -> InputStats:
    stats = InputStats(width)
    stats.add(random(tokens, width, seed=1) @ random(width, width, seed=2))
    return stats


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-300, 300), min_size=1, max_size=12), st.sampled_from((2, 3, 4, 8)))
def test_a_group_is_the_engines_own(numbers: list[int], bits: int) -> None:
    args = QuantArgs(bits, strategy="channel", symmetric=False)
    row, half = torch.tensor([numbers]) / 64, 1 << bits - 1
    params = qparams(*observed(row, args), args)
    codes, scale, zero = GROUP.function(row[0].tolist(), bits)
    assert params.zero is not None and scale == pytest.approx(params.scale.item(), rel=1e-6)
    # float32 and Python's own floats part only where a number lies between two codes.
    assert abs(zero - half - int(params.zero)) <= 1
    if zero - half == int(params.zero):
        assert (torch.tensor([codes]) - half - quantize(row, params, args)).abs().max() <= 1


@settings(deadline=None, max_examples=40)
@given(st.sampled_from((2, 4, 8)), st.integers(1, 20), st.integers(0, 99))
def test_words_are_the_engines_own(bits: int, length: int, seed: int) -> None:
    numbers = torch.randint(0, 1 << bits, (1, length), generator=torch.Generator().manual_seed(seed))
    own = packing.pack(numbers, bits)[0].tolist()
    assert PACK.function(numbers[0].tolist(), bits) == PACK.reference(numbers[0].tolist(), bits) == own


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 99))
def test_compensation_is_the_engines_own(size: int, outputs: int, seed: int) -> None:
    columns, rounded = random(size, outputs, seed=seed).double(), random(outputs, seed=seed + 1).double()
    factors = random(size, seed=seed + 2).double().abs() + 0.5
    answers = [COMPENSATE.function(row.tolist(), float(one), factors.tolist())
               for row, one in zip(columns.T, rounded, strict=True)]  # fmt: skip
    compensate(columns, rounded, factors)
    torch.testing.assert_close(columns.new_tensor(answers).reshape(outputs, -1).T, columns[1:])


def test_the_cases_own_solver_solves() -> None:
    inputs = random(12, 5).double()
    matrix, right = inputs.T @ inputs, random(5, seed=3).double()
    found = torch.tensor(solved(matrix.tolist(), right.tolist()), dtype=torch.float64)
    torch.testing.assert_close(matrix @ found, right)


def test_quantizing_rounds_by_the_readers_function() -> None:
    weight = random(6, 48)
    own, _ = calibrate.rtn(weight, W4)  # type: ignore[attr-defined]
    with GROUP.use(GROUP.function) as used:
        made, told = calibrate.rtn(weight, W4)  # type: ignore[attr-defined]
    assert used.calls == 6 * 3 and told.algorithm == "rtn"
    torch.testing.assert_close(made.dequantize(), own.dequantize())
    with GROUP._swapped(lambda numbers, bits: ([0] * len(numbers), 1.0, 0)):
        wrong, _ = calibrate.rtn(weight, W4)  # type: ignore[attr-defined]
        other, _ = calibrate.rtn(weight, QuantArgs(4, group_size=16))  # type: ignore[attr-defined]
    assert not wrong.dequantize().any() and other.dequantize().any(), "symmetric ones are the engine's own"


def test_a_checkpoint_is_packed_by_the_readers_function() -> None:
    halves = replace(W4, scale="fp16")
    made, _ = calibrate.rtn(random(16, 32), halves)  # type: ignore[attr-defined]
    codec = Gptq(halves)
    own = codec.encode(made)
    with PACK.use(PACK.function) as used:
        tensors = codec.encode(made)
    assert used.calls == 16 + 2, "rows of the weight, and of the zero points"
    assert all(torch.equal(tensors[name], own[name]) for name in own)
    with PACK._swapped(lambda numbers, bits: [0] * (len(numbers) * bits // 32)):
        assert not codec.encode(made)["qweight"].any()


@pytest.mark.parametrize("order", ["none", "static", "group"])
def test_gptq_compensates_by_the_readers_function(order: str) -> None:
    weight, stats = random(3, 48), calibrated(48, 96)
    own, _ = gptq(weight, stats, W4, order)
    with COMPENSATE.use(COMPENSATE.function) as used:
        made, _ = gptq(weight, stats, W4, order)
    assert used.calls == 3 * 48
    torch.testing.assert_close(made.dequantize(), own.dequantize(), atol=1e-4, rtol=1e-4)
    with COMPENSATE._swapped(lambda weights, rounded, factors: weights[1:]):
        alone, _ = gptq(weight, stats, W4, order)
    error = [stats.error([one.dequantize() - weight]) for one in (made, alone)]
    assert error[0] < error[1], "without compensation it is no better than it was"
