"""How far a chip's cost model is from steps that were measured, and the efficiencies that bring it nearest.

chip = calibrated(model_config, this_cpu(), few)          # five numbers, found from a few steps
deviations(ChipCost(model_config, chip), others)          # judged by steps that were not among them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.cost import Share
from workbench.simulate.chip_cost import ChipCost
from workbench.simulate.chips import Chip

FITTED = ("compute", "memory", "overlap", "step_seconds", "request_seconds")
LEAST_FACTOR = 1.005
"""The search ends when no change by this factor helps."""


class Observed(NamedTuple):
    """A step that was measured."""

    shares: tuple[Share, ...]
    seconds: float


class Deviations(NamedTuple):
    """Of modelled from measured times, as shares of the measured ones, in the order of the steps."""

    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        return self.quantile(0.9)

    def quantile(self, share: float) -> float:
        """The smallest error that at least ``share`` of all do not exceed."""
        return sorted(self.errors)[max(math.ceil(share * len(self.errors)), 1) - 1]


def observed(trace: StepTrace) -> Observed:
    """A step of a real run, as its trace tells it."""
    sampled = {new["request_id"] for new in trace.new_tokens}
    shares = [
        Share(item["num_computed_tokens"], item["num_tokens"], item["request_id"] in sampled)
        for item in trace.scheduled
    ]
    return Observed(tuple(shares), trace.duration)


def deviations(cost: ChipCost, steps: Sequence[Observed]) -> Deviations:
    """Raises UsageError without a step."""
    _require(steps, 1)
    return Deviations(tuple(abs(cost.step(one.shares).seconds / one.seconds - 1) for one in steps))


def calibrated(model_config: ModelConfig, chip: Chip, steps: Sequence[Observed], **dtypes: Any) -> Chip:
    """The chip with the `Efficiency` that makes the squared logarithms of modelled ÷ measured smallest.

    ``dtypes``: as `ChipCost` takes them. A pattern search from the chip's own numbers: each is multiplied and divided
    by a factor for as long as that helps, then the factor shrinks. No chance in it. An efficiency above 1 says that the
    ceiling was measured too low, or that a cache holds part of what is counted as traffic. Raises UsageError for fewer
    steps than numbers.
    """
    _require(steps, len(FITTED))

    def miss(candidate: Chip) -> float:
        cost = ChipCost(model_config, candidate, **dtypes)
        return math.fsum(math.log(cost.step(one.shares).seconds / one.seconds) ** 2 for one in steps)

    best, least, factor = chip, miss(chip), 2.0
    while factor > LEAST_FACTOR:
        helped = False
        for name in FITTED:
            for change in (factor, 1 / factor):
                tried = getattr(best.efficiency, name) * change
                other = best.with_efficiency(**{name: min(tried, 1.0) if name == "overlap" else tried})
                if (missed := miss(other)) < least:
                    best, least, helped = other, missed, True
                    break
        if not helped:
            factor = math.sqrt(factor)
    for name in FITTED[2:]:  # dividing never arrives at nothing
        other = best.with_efficiency(**{name: 0.0})
        if miss(other) <= least * (1 + 1e-6):
            best = other
    return best


def _require(steps: Sequence[Observed], least: int) -> None:
    if len(steps) < least:
        raise UsageError(f"{len(steps)} measured steps are too few: give at least {least}")
