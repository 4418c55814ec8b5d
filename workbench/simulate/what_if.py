"""What if: two runs of the same load that differ in their options, and the first step at which their plans part."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from workbench.engine.trace import StepTrace
from workbench.measure.load import Load
from workbench.model.config import ModelConfig
from workbench.simulate.cost import Cost
from workbench.simulate.run import plan_line, simulated_steps

NOTHING = "not in this step"


class Parting(NamedTuple):
    """The first step that differs, on both sides; None: that run was over."""

    step: int
    one: StepTrace | None
    other: StepTrace | None

    def requests(self) -> dict[str, tuple[str, str]]:
        """What either side says of each request of which one of them says anything."""
        one, other = (_told(trace) for trace in (self.one, self.other))
        names = dict.fromkeys([*one, *other])
        return {name: (one.get(name, NOTHING), other.get(name, NOTHING)) for name in names}

    def differences(self) -> dict[str, tuple[str, str]]:
        """Of those the ones of which they do not say the same."""
        return {name: pair for name, pair in self.requests().items() if pair[0] != pair[1]}

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "time": [None if trace is None else trace.time for trace in (self.one, self.other)],
            "requests": {name: list(pair) for name, pair in self.differences().items()},
        }


def what_if(
    one: Load,
    other: Load,
    cost: Cost,
    model_config: ModelConfig | None = None,
    other_cost: Cost | None = None,
) -> Parting | None:
    """Runs both side by side until they part; None where they never do.

    ``other_cost``: another chip, say. Times alone are no difference: runs part when a step decides otherwise.
    """
    runs = zip_longest(
        simulated_steps(one, cost, model_config),
        simulated_steps(other, cost if other_cost is None else other_cost, model_config),
    )
    for step, (here, there) in enumerate(runs):
        if here is None or there is None or plan_line(here) != plan_line(there):
            return Parting(step, here, there)
    return None


def _told(trace: StepTrace | None) -> dict[str, str]:
    """Of each request in a step: what it computes, or why it does not."""
    if trace is None:
        return {}
    told: dict[str, list[str]] = {}
    for name in trace.preempted:
        told.setdefault(name, []).append("preempted")
    for item in trace.scheduled:
        start, count = item["num_computed_tokens"], item["num_tokens"]
        text = f"{item['kind']}: {count} token{'s' if count > 1 else ''} from {start}"
        told.setdefault(item["request_id"], []).append(text)
    for skip in trace.skipped:
        told.setdefault(skip["request_id"], []).append(f"left out: {skip['reason']}")
    for name in trace.held:
        told.setdefault(name, []).append("complete, kept for its batch")
    for done in trace.finished:
        told.setdefault(done["request_id"], []).append(f"ends: {done['reason']}")
    return {name: ", ".join(texts) for name, texts in told.items()}
