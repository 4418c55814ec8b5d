"""Drives an engine through a workload: sends each request when it is due, steps, lets time pass when nobody computes.

The clock is the engine's, and ``wait`` lets its time pass, so the same driver runs a real model on a wall clock and a
simulated one on a virtual clock. No torch, no chance.

In an open loop a request's latency runs from when it was *due*. A driver that is busy with a step, or whose
``max_concurrency`` holds a request back, comes late; the request has waited all the same.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from workbench.engine.admission import QueueFull
from workbench.engine.clock import Clock, VirtualClock
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError, WorkbenchError
from workbench.interrupts import SafeInterrupts
from workbench.measure.workload import Workload
from workbench.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Rejected:
    index: int
    """Of the request in the workload."""
    why: str


@dataclass(slots=True)
class Drive:
    """What a run left behind."""

    traces: list[StepTrace] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    """Requests that the engine refused, and the turns that would have followed on them."""
    answers: dict[int, list[int]] = field(default_factory=dict)
    """Tokens that each request got, by its index in the workload."""
    arrivals: dict[int, float] = field(default_factory=dict)
    """When each request that was sent was due, on the engine's clock."""


def waits(clock: Clock) -> Callable[[float], None]:
    """How seconds of this clock pass: a virtual clock is moved, a wall clock is slept through."""
    return clock.advance if isinstance(clock, VirtualClock) else time.sleep


def drive(
    engine: Engine,
    workload: Workload,
    vocab_size: int,
    max_concurrency: int | None = None,
    wait: Callable[[float], None] | None = None,
) -> Drive:
    """Serves a workload to its end. The engine must be idle; prompts are drawn below ``vocab_size``.

    ``max_concurrency``: most requests of an open loop that are in the engine at once. Greedy, with end-of-sequence
    tokens ignored, so the lengths are those of the workload. A request that the engine refuses counts as rejected. On
    an interrupt or an error the requests of this run are aborted.
    """
    told = Drive()
    told.traces.extend(drive_steps(engine, workload, vocab_size, max_concurrency, wait, told))
    return told


def drive_steps(
    engine: Engine,
    workload: Workload,
    vocab_size: int,
    max_concurrency: int | None = None,
    wait: Callable[[float], None] | None = None,
    told: Drive | None = None,
) -> Iterator[StepTrace]:
    """As `drive`, step by step: each trace is handed over and not kept, ``told`` gets all the rest.

    The requests of this run are aborted too where the iterator is closed before its end.
    """
    if engine.has_unfinished():
        raise UsageError("the engine has unfinished requests: a workload is driven through an idle one")
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"max_concurrency={max_concurrency} lets nothing through: give at least 1")
    if max_concurrency is not None and workload.users is not None:
        raise UsageError(
            f"max_concurrency={max_concurrency} and a closed loop of {workload.users} users both bound what is asked "
            "at once: give one of them"
        )
    told = Drive() if told is None else told
    run = _Run(engine, workload, vocab_size, max_concurrency, wait or waits(engine.clock), told)
    with SafeInterrupts(lambda: engine.executing or run.waiting) as interrupts:
        try:
            while not run.over:
                trace = run.turn()
                interrupts.check()
                if trace is not None:
                    yield trace
        except BaseException:
            for request_id in run.in_flight:
                engine.abort(request_id)
            raise


class _Run:
    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        vocab_size: int,
        limit: int | None,
        wait: Callable[[float], None],
        told: Drive,
    ) -> None:
        self.engine, self.workload, self.vocab_size, self.wait = engine, workload, vocab_size, wait
        self.told = told
        self.in_flight: dict[str, int] = {}
        self.waiting = False
        start = engine.clock.now()
        self.due: list[tuple[float, int]] = []
        self.followers: dict[int, list[int]] = {}
        for index, ask in enumerate(workload.asks):
            if ask.after is None:
                self.due.append((start + (0.0 if workload.users else ask.arrival), index))
            else:
                self.followers.setdefault(ask.after, []).append(index)
        heapq.heapify(self.due)
        self.limit = workload.users or limit or math.inf
        self.free_since = [start] * (workload.users or 0)
        """Of each user of a closed loop without a request, since when."""

    @property
    def over(self) -> bool:
        return not (self.due or self.in_flight)

    def turn(self) -> StepTrace | None:
        """Sends what is due, then one step or one wait."""
        now = self.engine.clock.now()
        while self.due and self.due[0][0] <= now and len(self.in_flight) < self.limit:
            self._send(*heapq.heappop(self.due))
        # A request that a listener aborted is in flight until a step has told of it.
        if self.in_flight:
            return self._step()
        if self.due:
            self._wait_until(self.due[0][0])
        return None

    def _send(self, due: float, index: int) -> None:
        # A user of a closed loop asks when he is free; an open loop's request was due when it was due.
        free = heapq.heappop(self.free_since) if self.workload.users else due
        arrival, params = max(due, free), self._params(index)
        prompt = self.workload.prompt(index, self.vocab_size, self.told.answers)
        try:
            request_id = self.engine.add_request(prompt, params, arrival_time=arrival)
        except (UsageError, QueueFull) as refusal:
            self._reject(index, str(refusal))
            if self.workload.users:
                heapq.heappush(self.free_since, free)
            return
        self.in_flight[request_id] = index
        self.told.arrivals[index] = arrival
        self.told.answers[index] = []

    def _reject(self, index: int, why: str) -> None:
        """A turn that was refused takes those that would have followed on it along."""
        lost = [(index, why)]
        while lost:
            index, why = lost.pop()
            self.told.rejected.append(Rejected(index, why))
            lost += [(next_, f"it follows on request {index}, rejected") for next_ in self.followers.get(index, ())]

    def _step(self) -> StepTrace:
        # A static batch waits for company that is to come and not for company that cannot. A dynamic one waits its time
        # in any case: whoever serves does not know that nobody else will come.
        company = not math.isinf(self._next_arrival())
        self.engine.more_may_come = company or self.engine.config.batching == "dynamic"
        trace = self.engine.step()
        end = trace.time + trace.duration
        for new in trace.new_tokens:
            self.told.answers[self.in_flight[new["request_id"]]].append(new["token_id"])
        for done in trace.finished:
            index = self.in_flight.pop(done["request_id"])
            for follower in self.followers.get(index, ()):
                heapq.heappush(self.due, (end + self.workload.asks[follower].arrival, follower))
            if self.workload.users:
                heapq.heappush(self.free_since, end)
        if not trace.scheduled and not trace.finished and self.engine.has_unfinished():
            self._wait_until(min(self._next_arrival(), self._next_engine_event()))
        return trace

    def _next_arrival(self) -> float:
        return self.due[0][0] if self.due and len(self.in_flight) < self.limit else math.inf

    def _next_engine_event(self) -> float:
        """When an engine that holds its requests back will go on by itself."""
        return self.engine.wake_time()

    def _wait_until(self, moment: float) -> None:
        if math.isinf(moment):
            raise WorkbenchError(
                f"{len(self.in_flight)} requests are in the engine, none is computed and nothing more will arrive: "
                "the engine's policy holds them back for good"
            )
        self.waiting = True
        try:
            self.wait(max(moment - self.engine.clock.now(), 0.0))
        finally:
            self.waiting = False

    def _params(self, index: int) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=self.workload.asks[index].output_len, ignore_eos=True)
