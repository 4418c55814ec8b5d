"""The cost model on this CPU: calibrated by a few steps of the real engine, judged by others it has not seen."""

from __future__ import annotations

import pytest

from tests.conftest import Proof
from workbench import LLM
from workbench.measure.hardware import hardware
from workbench.measure.step_times import time_steps
from workbench.simulate.validate import validate

MEDIAN, P90 = 0.15, 0.35


@pytest.mark.proof
def test_step_times_of_held_out_points(proof: Proof) -> None:
    ceilings = hardware("cpu")
    llm = LLM(model="smollm2-135m", device="cpu", num_kv_blocks=1024, max_model_len=1024)
    found = validate(llm.model_config, ceilings, "float32", *time_steps(llm))
    numbers, held_out = found.chip.efficiency, [step for step in found.steps if step.held_out]
    worst = max(held_out, key=lambda step: abs(step.modelled / step.seconds - 1))
    proof.report(
        f"step times of {len(held_out)} held-out steps on this CPU, from {len(found.steps) - len(held_out)} others",
        f"median error {found.after.median:.1%}, 90th percentile {found.after.p90:.1%} (uncalibrated "
        f"{found.before.median:.0%}); compute {numbers.compute:.2f}, memory {numbers.memory:.2f}, overlap "
        f"{numbers.overlap:.2f}, {numbers.step_seconds * 1e3:.1f} ms a step, {numbers.request_seconds * 1e6:.0f} µs a "
        f"request; worst {worst.modelled / worst.seconds - 1:+.0%} at {tuple(worst[:3])}",
    )
    assert found.after.median <= MEDIAN and found.after.p90 <= P90
