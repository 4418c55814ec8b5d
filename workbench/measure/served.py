"""What became of each request, read from step traces alone. No torch.

A token is there when the step that sampled it has ended. Times are seconds of the engine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from workbench.engine.trace import StepTrace


@dataclass(slots=True)
class Served:
    """One request's times. ``arrival`` is when it was due; an open-loop driver that came late does not move it."""

    request_id: str
    arrival: float
    input_len: int
    first_scheduled: float | None = None
    """When the first step that computed a token of it had been planned."""
    token_times: list[float] = field(default_factory=list)
    reason: str | None = None
    """Why it ended (``stop``, ``length``, ``abort``), or None if it has not."""

    @property
    def completed(self) -> bool:
        return self.reason not in (None, "abort")

    @property
    def queue(self) -> float | None:
        """Arrival to the first step that computed a token of it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Arrival to first token."""
        return self.token_times[0] - self.arrival if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """(last token − first) / (tokens − 1). None for a request of one token: it has nothing after the first."""
        times = self.token_times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def itl(self) -> list[float]:
        """Each gap between two tokens that follow each other."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def e2el(self) -> float | None:
        """Arrival to last token."""
        return self.token_times[-1] - self.arrival if self.token_times else None


class ServedLog:
    """Every request that was added in the steps it is told of, in order. A later request may have the id of a finished
    one.

    Of a request that was added before the first of these steps nothing is told: when it came is not known.
    """

    def __init__(self) -> None:
        self.requests: list[Served] = []
        self._now: dict[str, Served] = {}

    def add(self, trace: StepTrace) -> None:
        now = self._now
        for event in trace.inputs:
            if "add" in event:
                added = event["add"]
                prompt = added.get("prompt_token_ids", ())  # the further answers of n have none of their own
                one = Served(added["request_id"], added["arrival_time"], len(prompt))
                now[one.request_id] = one
                self.requests.append(one)
        planned, end = trace.time + trace.phases.get("schedule", 0.0), trace.time + trace.duration
        for item in trace.scheduled:
            request = now.get(item["request_id"])
            if request is not None and request.first_scheduled is None:
                request.first_scheduled = planned
        for new in trace.new_tokens:
            request = now.get(new["request_id"])
            if request is not None:
                request.token_times.append(end)
        for done in trace.finished:
            if done["request_id"] in now:
                now.pop(done["request_id"]).reason = done["reason"]


def served_requests(traces: Iterable[StepTrace]) -> list[Served]:
    """Every request that was added in these steps, as `ServedLog` tells it."""
    log = ServedLog()
    for trace in traces:
        log.add(trace)
    return log.requests
