"""Calibration finds the efficiencies that made the times, and errors are those of steps it has not seen."""

from __future__ import annotations

from random import Random

import pytest

from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.measure.drive import drive
from workbench.measure.lengths import Uniform
from workbench.measure.workload import plain_workload
from workbench.model.cost import Share
from workbench.simulate import CHIPS, ChipCost, model_shape, simulated_engine
from workbench.simulate.calibrate import Deviations, Observed, calibrated, deviations, observed

SHAPE = model_shape("qwen2.5-0.5b")
TRUE = CHIPS["a100-80"].with_efficiency(compute=0.31, memory=0.57, step_seconds=4e-3, request_seconds=3e-5)


def steps(count: int, seed: int, noise: float = 0.0) -> list[Observed]:
    """Steps of many kinds with the times that `TRUE` takes for them, give or take ``noise``."""
    draw, cost, found = Random(seed), ChipCost(SHAPE, TRUE), []
    for _ in range(count):
        shares = [Share(draw.randint(1, 30_000), 1)] * draw.choice([0, 1, 8, 64])
        shares += [Share(0, draw.choice([64, 500, 4000, 16_000]))] * (draw.random() < 0.5 or not shares)
        found.append(Observed(tuple(shares), cost.step(shares).seconds * (1 + draw.uniform(-noise, noise))))
    return found


def test_the_numbers_that_made_the_times_are_found() -> None:
    few, others = steps(24, 0), steps(60, 1)
    before = deviations(ChipCost(SHAPE, CHIPS["a100-80"]), others)
    chip = calibrated(SHAPE, CHIPS["a100-80"], few)
    after = deviations(ChipCost(SHAPE, chip), others)
    assert before.median > 0.3 and after.median < 0.02 and after.p90 < 0.05
    assert chip.efficiency.compute == pytest.approx(0.31, rel=0.1)
    assert chip.efficiency.step_seconds == pytest.approx(4e-3, rel=0.1)
    assert chip == calibrated(SHAPE, CHIPS["a100-80"], few)


def test_a_chip_that_reads_and_computes_in_turn_is_told_from_one_that_does_both_at_once() -> None:
    slow = TRUE.with_efficiency(overlap=0.25)
    few = [one._replace(seconds=ChipCost(SHAPE, slow).step(one.shares).seconds) for one in steps(24, 0)]
    assert calibrated(SHAPE, CHIPS["a100-80"], few).efficiency.overlap == pytest.approx(0.25, abs=0.1)
    assert calibrated(SHAPE, CHIPS["a100-80"], steps(24, 0)).efficiency.overlap > 0.9
    assert "0.75 * (the shorter ones)" in repr(ChipCost(SHAPE, slow)) and "shorter" not in repr(ChipCost(SHAPE, TRUE))
    with pytest.raises(UsageError, match=r"overlap=1\.5 must be a share"):
        TRUE.with_efficiency(overlap=1.5)


def test_noise_is_not_taken_for_the_chip() -> None:
    chip = calibrated(SHAPE, CHIPS["a100-80"], steps(30, 2, noise=0.2))
    assert deviations(ChipCost(SHAPE, chip), steps(60, 3)).median < 0.1


def test_a_trace_tells_its_shares() -> None:
    engine = simulated_engine(EngineConfig(max_num_batched_tokens=64, max_num_seqs=4), ChipCost(SHAPE, TRUE), SHAPE)
    told = drive(engine, plain_workload(9, Uniform(10, 200), Uniform(2, 9), seed=0), SHAPE.vocab_size)
    found = [observed(trace) for trace in told.traces]
    assert deviations(ChipCost(SHAPE, TRUE), found).quantile(1.0) < 1e-9
    assert any(not share.samples for one in found for share in one.shares)


def test_quantiles_are_errors_that_occurred() -> None:
    told = Deviations((0.4, 0.1, 0.2, 0.3))
    assert (told.median, told.p90, told.quantile(0.0)) == (0.2, 0.4, 0.1)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="4 measured steps are too few: give at least 5"):
        calibrated(SHAPE, TRUE, steps(4, 0))
    with pytest.raises(UsageError, match="at least 1"):
        deviations(ChipCost(SHAPE, TRUE), [])
