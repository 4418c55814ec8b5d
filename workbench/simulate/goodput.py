"""The highest arrival rate at which a service level objective is kept, by bisection on the virtual clock."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from workbench.errors import UsageError
from workbench.measure.arrivals import gamma
from workbench.measure.load import Load
from workbench.model.config import ModelConfig
from workbench.simulate.cost import Cost
from workbench.simulate.run import simulate

ATTAINMENT = 0.9
"""Share of requests that must keep to the limits unless told otherwise."""
TOLERANCE = 0.02
"""The search ends when the lowest rate that fails is at most this much above the highest that holds."""
SLOWEST, FASTEST = 2.0**-20, 2.0**20


class Tried(NamedTuple):
    rate: float
    """Requests a second."""
    attainment: float
    holds: bool


class Goodput(NamedTuple):
    rate: float
    """The highest rate found that holds."""
    result: dict[str, Any]
    """Of the run at that rate."""
    tried: list[Tried]

    def to_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "tried": [tried._asdict() for tried in self.tried]}


def highest_rate(
    load: Load,
    cost: Cost,
    model_config: ModelConfig | None = None,
    attainment: float = ATTAINMENT,
    burstiness: float = 1.0,
    tolerance: float = TOLERANCE,
) -> Goodput:
    """The highest rate at which ``attainment`` of all requests keep to the load's SLO.

    Arrivals are a gamma process of ``burstiness``; another rate stretches the same arrivals. It is taken for granted
    that a lower rate is never worse; the rates that were tried are told. A workload of few requests is over before a
    queue can grow, so the rate found is too high for one. Raises UsageError without an SLO, where the slowest arrivals
    do not keep to it, and where all requests at once do.
    """
    if load.slo is None:
        raise UsageError("the highest rate is asked for an SLO: give one, such as ttft:500 tpot:50")
    if load.workload.users is not None:
        raise UsageError("a closed loop has no arrival rate to search for: leave the users out")
    if not 0 < attainment <= 1:
        raise UsageError(f"an attainment of {attainment} must be a share above 0 and at most 1")
    if not tolerance > 0:
        raise UsageError(f"a tolerance of {tolerance} must be above 0")
    tried: list[Tried] = []
    kept: dict[float, dict[str, Any]] = {}

    def holds(rate: float) -> bool:
        times = gamma(load.workload.num_arrivals, rate, burstiness, load.workload.seed)
        told = {"arrivals": "gamma", "request_rate": rate, "burstiness": burstiness}
        result = simulate(load._replace(workload=load.workload.arriving(times, told)), cost, model_config)
        good = bool(result["slo_attainment"] >= attainment)
        tried.append(Tried(rate, result["slo_attainment"], good))
        if good:
            kept[rate] = result
        return good

    low = high = 1.0
    if holds(low):
        while holds(high := high * 2):
            low = high
            if high >= FASTEST:
                raise UsageError(f"{load.slo.to_dict()} holds at any rate: ask for more or longer requests")
    else:
        while not holds(low := low / 2):
            high = low
            if low <= SLOWEST:
                raise UsageError(
                    f"{load.slo.to_dict()} does not hold at any rate: raise the limits or take a faster chip"
                )
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Goodput(low, kept[low], tried)
