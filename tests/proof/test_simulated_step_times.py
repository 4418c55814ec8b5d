"""The cost model on this CPU: calibrated by a few steps of the real engine, judged by others it has not seen."""

from __future__ import annotations

import random

import pytest

from tests.conftest import Proof
from workbench import LLM
from workbench.measure.hardware import hardware
from workbench.measure.step_times import Point, step_times
from workbench.simulate import ChipCost
from workbench.simulate.calibrate import calibrated, deviations, observed
from workbench.simulate.chips import this_cpu

MEDIAN, P90 = 0.15, 0.35
POINTS = [
    *(Point(batch, context) for batch in (1, 2, 4, 8, 16) for context in (32, 128, 512) if batch * context <= 2048),
    *(Point(0, 0, chunk) for chunk in (16, 64, 128, 256, 512)),
    *(Point(batch, context, chunk) for batch, context in ((2, 64), (4, 256), (8, 128)) for chunk in (16, 64, 256)),
]
FEW = 10
"""Points of 27 that the four efficiencies are taken from."""


@pytest.mark.proof
def test_step_times_of_held_out_points(proof: Proof) -> None:
    hardware("cpu")
    llm = LLM(model="smollm2-135m", device="cpu", num_kv_blocks=1024, max_model_len=1024)
    order = POINTS[:]
    random.Random(0).shuffle(order)  # so that a spell of other work on the machine does not hit one kind of step
    steps = [observed(time.trace) for time in step_times(llm, order, repeats=7)]
    shape = llm.model_config
    before = deviations(ChipCost(shape, this_cpu()), steps[FEW:])
    chip = calibrated(shape, this_cpu(), steps[:FEW])
    after = deviations(ChipCost(shape, chip), steps[FEW:])
    found = chip.efficiency
    worst = max(zip(after.errors, order[FEW:], strict=True))
    proof.report(
        f"step times of {len(after.errors)} held-out points on this CPU, from {FEW} others",
        f"median error {after.median:.1%}, 90th percentile {after.p90:.1%} (uncalibrated {before.median:.0%}); compute "
        f"{found.compute:.2f}, memory {found.memory:.2f}, {found.step_seconds * 1e3:.1f} ms a step, "
        f"{found.request_seconds * 1e6:.0f} µs a request; worst {worst[0]:.0%} at {tuple(worst[1])}",
    )
    assert after.median <= MEDIAN and after.p90 <= P90
