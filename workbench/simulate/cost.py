"""What a step costs, as a model says it: the interface, and the plainest model there is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from workbench.errors import UsageError
from workbench.plan import StepPlan


class Price(NamedTuple):
    """Of one step."""

    seconds: float
    flops: int = 0
    bytes: int = 0
    moved_bytes: int = 0
    """Of blocks that the plan moves to the host or back: see `StepResult`."""


class Memory(NamedTuple):
    """What there is for the KV pool, in bytes."""

    kv_bytes_per_token: int
    """Over all layers."""
    total: int
    """That could be used at all: the chip's, less the weights."""
    pool: int
    """That the pool takes unless told otherwise."""


@runtime_checkable
class CostModel(Protocol):
    """Prices steps. It must be a function of the plan alone, or two runs would differ."""

    def price(self, plan: StepPlan) -> Price: ...

    def memory(self, utilization: float) -> Memory | None:
        """``utilization``: share of the chip's memory that may be used. None: memory is not modelled."""

    def describe(self) -> dict[str, Any]:
        """The numbers it works with and where they come from, ready for JSON."""


class FixedCost:
    """``seconds_per_step`` for a step, whatever is in it, and ``seconds_per_token`` for each token computed."""

    def __init__(self, seconds_per_step: float, seconds_per_token: float = 0.0) -> None:
        for name, value in (("seconds_per_step", seconds_per_step), ("seconds_per_token", seconds_per_token)):
            if not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"{name}={value} must be a finite number of seconds of at least 0")
        if seconds_per_step == seconds_per_token == 0:
            raise UsageError("a step that takes no time at all: give seconds_per_step or seconds_per_token above 0")
        self.seconds_per_step = seconds_per_step
        self.seconds_per_token = seconds_per_token

    def price(self, plan: StepPlan) -> Price:
        return Price(self.seconds_per_step + self.seconds_per_token * plan.num_tokens)

    def memory(self, utilization: float) -> Memory | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "fixed",
            "seconds_per_step": self.seconds_per_step,
            "seconds_per_token": self.seconds_per_token,
        }


class OwnCost:
    """Any function from a plan to seconds."""

    def __init__(self, step_seconds: Callable[[StepPlan], float]) -> None:
        self.step_seconds = step_seconds

    def price(self, plan: StepPlan) -> Price:
        return Price(self.step_seconds(plan))

    def memory(self, utilization: float) -> Memory | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", "name": getattr(self.step_seconds, "__name__", type(self.step_seconds).__name__)}


Cost = CostModel | Callable[[StepPlan], float]


def as_cost_model(cost: Cost) -> CostModel:
    """A cost model as it is; a function from a plan to seconds as one."""
    if isinstance(cost, CostModel):
        return cost
    if callable(cost):
        return OwnCost(cost)
    raise UsageError(f"{cost!r} is no cost model: give FixedCost(0.1), say, or a function from a plan to seconds")
