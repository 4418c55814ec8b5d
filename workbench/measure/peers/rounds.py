"""The rounds: every workload goes through all systems before the next one, so that a slow moment meets all of them.

Each system is a process. All are loaded at the start and halted while another one is measured; where memory does not
allow that, each is loaded in turn within a round, and does all workloads before it makes room. No torch.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.machine import busy_seconds, num_cpus
from workbench.measure.peers.process import PeerFailed, Worker, idle_shares
from workbench.measure.peers.quality import equal_tokens, equal_top
from workbench.measure.peers.systems import REFERENCE, System
from workbench.measure.peers.workloads import Job
from workbench.model.divergence import kl_divergence

SETTLE_SECONDS = 0.5
IDLE = 0.05
"""Share of a processor from which on an idle system is called busy."""


@dataclass(slots=True)
class Found:
    """What is known of one system so far."""

    info: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why it took no further part, and where."""
    load_seconds: float | None = None
    idle_cpu: float | None = None
    kl: float | None = None
    equal_top: float | None = None
    answers: dict[str, list[list[int]]] = field(default_factory=dict)
    """Of each workload's first run."""
    runs: dict[str, list[dict[str, float] | None]] = field(default_factory=dict)
    """Workload -> a run for each round, with ``figure``, ``seconds``, ``first_seconds`` and ``others``; None where it
    failed."""


class Neighbours:
    """What other programs take of the processors while one worker is measured, from its making to `share`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._began = self._now()

    def share(self) -> float:
        """Of all processors of this process; 0 where the system does not tell."""
        wall, mine, busy = (after - before for after, before in zip(self._now(), self._began, strict=True))
        return min(1.0, max(0.0, (busy - mine) / (wall * num_cpus()))) if busy else 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._worker.cpu_seconds() or 0.0, busy_seconds() or 0.0


class Rounds:
    """``run`` measures; what came of it stands in ``found``, in the order of ``systems``."""

    def __init__(
        self,
        systems: Sequence[System],
        jobs: Sequence[Job],
        rounds: int,
        timeout: float,
        scratch: Path,
        quality_ids: Sequence[int],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``timeout``: seconds that one answer of a worker may take. ``scratch``: a folder for logs and logits.
        ``quality_ids``: the text whose next-token distributions are compared with those of `REFERENCE`."""
        self.systems, self.jobs, self.rounds, self.timeout = list(systems), list(jobs), rounds, timeout
        self.scratch, self.quality_ids, self.say = scratch, list(quality_ids), say
        self.found = {system.name: Found(runs={job.name: [None] * rounds for job in jobs}) for system in systems}
        self.interrupted = False
        """Whether Ctrl-C ended `run` before all rounds were taken."""
        self._workers: dict[str, Worker] = {}
        self._reference: Any = None

    def run(self, together: bool) -> None:
        """All rounds, or those until Ctrl-C. Whatever happens, no worker is left behind."""
        try:
            if together:
                self._together()
            else:
                self._in_turn()
        except KeyboardInterrupt:
            if not any(run for found in self.found.values() for runs in found.runs.values() for run in runs):
                raise
            self.interrupted = True
            self.say("interrupted: what was measured until now is reported")
        finally:
            with contextlib.ExitStack() as stack:  # goes on with the others if a second Ctrl-C meets one
                for worker in self._workers.values():
                    stack.callback(worker.close, patience=0)

    def _together(self) -> None:
        for system in self.systems:
            self._load(system)
        time.sleep(SETTLE_SECONDS)
        for name, share in idle_shares(self._workers).items():
            self._tell_idle(name, share)
        for worker in self._workers.values():
            worker.stop()
        for system in self._alive():
            self._judge(system)
        for number in range(self.rounds):
            for job in self.jobs:
                for system in self._alive():
                    self._measure(system, job, number)

    def _in_turn(self) -> None:
        for number in range(self.rounds):
            for system in self.systems:
                if self.found[system.name].error is None and self._load(system):
                    if number == 0:
                        time.sleep(SETTLE_SECONDS)
                        worker = self._workers[system.name]
                        self._tell_idle(system.name, idle_shares({system.name: worker})[system.name])
                        self._judge(system)
                    for job in self.jobs:
                        if system.name in self._workers:
                            self._measure(system, job, number)
                    if worker := self._workers.pop(system.name, None):
                        worker.close()

    def _alive(self) -> list[System]:
        return [system for system in self.systems if system.name in self._workers]

    def _load(self, system: System) -> bool:
        self.say(f"loading {system.name}")
        found, began = self.found[system.name], time.perf_counter()
        try:
            # With its own environment, as it is used anywhere else; only the number of threads is the same for all.
            env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
            env |= {"OMP_NUM_THREADS": str(system.options.get("threads", 1))} | system.env
            worker = Worker(system.command, env, self.scratch / f"{system.name}.log")
            self._workers[system.name] = worker
            found.info = worker.ask({"do": "load", **system.options}, self.timeout)
        except PeerFailed as error:
            self._fail(system, "load", error)
            return False
        found.load_seconds = found.load_seconds or round(time.perf_counter() - began, 2)
        return True

    def _tell_idle(self, name: str, share: float | None) -> None:
        self.found[name].idle_cpu = share
        if share is not None and share > IDLE:
            self.say(f"  {name} takes {share:.0%} of a processor while it is idle; it is halted while others run")

    def _judge(self, system: System) -> None:
        """Compares a system's distributions with the reference's, which is the first to be judged."""
        import numpy as np

        file = self.scratch / f"{system.name}.npy"
        try:
            told = self._ask(system, {"do": "logits", "ids": self.quality_ids, "file": str(file)})
            if told is None:
                return
            logits = np.load(file)
            if system.name == REFERENCE:
                self._reference = logits
            if self._reference is not None:
                found = self.found[system.name]
                found.kl = max(0.0, kl_divergence(self._reference, logits))
                found.equal_top = equal_top(self._reference, logits)
        except PeerFailed as error:
            self._fail(system, "quality", error)
        except (OSError, ValueError) as error:
            self._fail(system, "quality", PeerFailed(f"its logits are none: {error}"))
        finally:
            file.unlink(missing_ok=True)

    def _measure(self, system: System, job: Job, number: int) -> None:
        found = self.found[system.name]
        message = {"do": "run", "prompts": job.prompts, "output_lens": job.output_lens, "head": job.head}
        neighbours = Neighbours(self._workers[system.name])
        try:
            told = self._ask(system, message)
            job.check(told["answers"])
            run = {name: float(told[name]) for name in ("seconds", "first_seconds")}
            run["figure"] = job.figure(**run)
            run["others"] = neighbours.share()
        except PeerFailed as error:
            self._fail(system, f"workload {job.name}", error)
            return
        except (ValueError, KeyError, TypeError) as error:
            self._fail(system, f"workload {job.name}", PeerFailed(f"its answer is wrong: {error}"))
            return
        found.answers.setdefault(job.name, told["answers"])
        found.runs[job.name][number] = run
        self.say(f"round {number + 1}/{self.rounds} ({job.name}) {system.name}: {run['figure']:,.1f} {job.unit}")

    def _ask(self, system: System, message: Mapping[str, Any]) -> Any:
        """Only the system that is asked runs meanwhile."""
        worker = self._workers[system.name]
        worker.go()
        try:
            return worker.ask(message, self.timeout)
        finally:
            worker.stop()

    def _fail(self, system: System, where: str, error: PeerFailed) -> None:
        self.found[system.name].error = f"{where}: {error}"
        self.say(f"{system.name} takes no further part: {where}: {error}")
        if worker := self._workers.pop(system.name, None):
            worker.close(patience=0)


def figures(found: Found, job: Job) -> dict[str, Any] | None:
    """Median, lowest and highest of a system's rounds, then round by round what was measured, and output tokens per
    second of the ``whole``; None if no round was counted."""
    runs = [run for run in found.runs[job.name] if run is not None]
    if not runs:
        return None
    values = [run["figure"] for run in runs]
    by_round = {
        key: [None if run is None else run[name] for run in found.runs[job.name]]
        for key, name in (("rounds", "figure"), ("seconds",) * 2, ("first_seconds",) * 2, ("others",) * 2)
    }
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        **by_round,
        "whole": statistics.median(sum(job.output_lens) / run["seconds"] for run in runs),
    }


def ratio(ours: Found, theirs: Found, job: Job) -> float | None:
    """The median over rounds of how many times better ours is (more is always better); None if they share no round."""
    pairs = [
        (one["figure"], other["figure"])
        for one, other in zip(ours.runs[job.name], theirs.runs[job.name], strict=True)
        if one is not None and other is not None
    ]
    return statistics.median(a / b if job.more_is_better else b / a for a, b in pairs) if pairs else None


def same_tokens(found: Found, reference: Found, name: str) -> float | None:
    """The share of greedy tokens equal to the reference's in a workload's first request."""
    if name not in found.answers or name not in reference.answers:
        return None
    return equal_tokens(reference.answers[name][0], found.answers[name][0])
