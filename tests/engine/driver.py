"""Feeds an engine on a virtual clock: arrivals at their times, so many seconds a step, sleep where it says so."""

from __future__ import annotations

from typing import NamedTuple

from tests.engine.paged_fake import greedy
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.engine.request import Request
from workbench.engine.trace import StepTrace


class Arrival(NamedTuple):
    time: float
    name: str
    num_prompt_tokens: int = 1
    max_tokens: int = 1
    priority: int = 0


class Run(NamedTuple):
    traces: list[StepTrace]
    requests: dict[str, Request]

    def first_step(self, name: str) -> StepTrace:
        return next(t for t in self.traces if any(s["request_id"] == name for s in t.scheduled))

    def token_times(self, name: str) -> list[float]:
        return [t.time + t.duration for t in self.traces for new in t.new_tokens if new["request_id"] == name]

    def returned(self) -> dict[str, float]:
        return {end["request_id"]: t.time + t.duration for t in self.traces for end in t.finished}


def feed(engine: Engine, arrivals: list[Arrival], step_seconds: float = 1.0, last_is_known: bool = True) -> Run:
    """``last_is_known``: nobody waits for company once all have arrived. Fails where the engine would spin."""
    clock = engine.clock
    assert isinstance(clock, VirtualClock)
    engine.runner.during = lambda plan: clock.advance(step_seconds)
    queue, traces, requests = sorted(arrivals), [], {}
    engine.more_may_come = True
    while queue or engine.has_unfinished():
        while queue and queue[0].time <= clock.now():
            arrival = queue.pop(0)
            engine.add_request(
                [ord(arrival.name[0]) % 40] * arrival.num_prompt_tokens,
                greedy(arrival.max_tokens),
                arrival.name,
                priority=arrival.priority,
                arrival_time=arrival.time,
            )
            requests[arrival.name] = engine.requests[arrival.name]
        engine.more_may_come = bool(queue) or not last_is_known
        wake = min([engine.wake_time(), *(arrival.time for arrival in queue[:1])])
        if wake > clock.now():
            clock.advance_to(wake)
            continue
        traces.append(engine.step())
        engine.pool.check()
        # A driver that heeds wake_time never steps in vain, so virtual time always passes.
        assert traces[-1].scheduled or traces[-1].finished, traces[-1].skipped
    assert engine.pool.num_available == engine.pool.num_blocks
    return Run(traces, requests)
