"""The cost model against a device: calibrated by a few steps that the real engine made on it, judged by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.engine.trace import StepTrace
from workbench.measure.ceilings import Hardware
from workbench.model.config import ModelConfig
from workbench.simulate.calibrate import Deviations, calibrated, deviations, observed
from workbench.simulate.chip_cost import ChipCost
from workbench.simulate.chips import Chip, measured_chip

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Judged(NamedTuple):
    batch: int
    context: int
    chunk: int
    """As in `workbench.measure.step_times.Point`."""
    seconds: float
    """Measured: the median of the repetitions."""
    modelled: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class Validation:
    """What a calibration found and how far it is off."""

    hardware: Hardware
    chip: Chip
    """The device with the efficiencies that were found."""
    steps: tuple[Judged, ...]
    before: Deviations
    """Of the steps that were held out, before the calibration."""
    after: Deviations

    def to_dict(self) -> dict[str, Any]:
        return {
            "efficiency": asdict(self.chip.efficiency),
            "median_error": self.after.median,
            "p90_error": self.after.p90,
            "median_error_before": self.before.median,
            "steps": [step._asdict() for step in self.steps],
        }


def validate(
    model_config: ModelConfig,
    hardware: Hardware,
    dtype: str,
    few: Mapping[tuple[int, int, int], StepTrace],
    others: Mapping[tuple[int, int, int], StepTrace],
) -> Validation:
    """``few``: steps to calibrate by, ``others``: steps to judge by; (batch, context, chunk) → trace, as
    `workbench.measure.step_times.time_steps` gives them. ``dtype``: that the model ran in."""
    bare = measured_chip(replace(hardware, efficiency=None))
    seen, unseen = ([observed(trace) for trace in traces.values()] for traces in (few, others))
    chip = calibrated(model_config, bare, seen, dtype=dtype)
    cost = ChipCost(model_config, chip, dtype=dtype)
    steps = tuple(
        Judged(*point, step.seconds, cost.step(step.shares).seconds, point in others)
        for point, step in zip((*few, *others), (*seen, *unseen), strict=True)
    )
    before = deviations(ChipCost(model_config, bare, dtype=dtype), unseen)
    return Validation(hardware, chip, steps, before, deviations(cost, unseen))


def plot(found: Validation) -> Figure:
    """Modelled against measured times of all steps. On the line both are equal; hollow marks were calibrated by."""
    from matplotlib import pyplot, style

    with style.context("default"):
        figure, axes = pyplot.subplots(figsize=(5.5, 5), facecolor="white", layout="constrained")
        ends = [1e3 * min(min(step.seconds, step.modelled) for step in found.steps) / 1.3]
        ends.append(1e3 * max(max(step.seconds, step.modelled) for step in found.steps) * 1.3)
        axes.loglog(ends, ends, color="black", linewidth=1)
        axes.fill_between(ends, [end / 1.35 for end in ends], [end * 1.35 for end in ends], color="0.9")
        for kind, marker, chosen in (
            ("decode", "o", [step for step in found.steps if not step.chunk]),
            ("prompt", "s", [step for step in found.steps if not step.batch]),
            ("both", "^", [step for step in found.steps if step.chunk and step.batch]),
        ):
            for held_out in (False, True):
                points = [step for step in chosen if step.held_out == held_out]
                axes.plot(
                    [1e3 * step.seconds for step in points],
                    [1e3 * step.modelled for step in points],
                    marker,
                    color="#0072b2",
                    fillstyle="full" if held_out else "none",
                    label=kind if held_out else None,
                )
        axes.set_xlabel("measured (ms a step)")
        axes.set_ylabel("modelled (ms a step)")
        axes.set_title(
            f"{found.hardware.name}\nheld out: median error {found.after.median:.0%}, 90th percentile "
            f"{found.after.p90:.0%}; grey: within 35 %",
            fontsize=9,
        )
        axes.legend()
        axes.grid(True, which="major", alpha=0.3)
        pyplot.close(figure)
    return figure
