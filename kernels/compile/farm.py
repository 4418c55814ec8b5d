"""Compiles many variants, as many at a time as there are processors, each in a process of its own.

A compiler may crash or never come back; then that one variant has failed and the others go on. New processes are
forked from a server that has loaded torch and Triton once, so that one costs milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from kernels.compile import cache, find
from kernels.compile.build import CannotCompile, build, key
from kernels.compile.made import Made, read

SECONDS = 1200  # no kernel here needs 30; a machine that does other things as well may take long


@dataclass(frozen=True)
class Job:
    """One variant for one chip."""

    found: find.Found
    arch: str


@dataclass(frozen=True)
class Outcome:
    """What became of a job: figures, or why there are none. cached: it was compiled before. seconds: of processor time
    that compiling and reading took."""

    job: Job
    made: Made | None
    error: str = ""
    cached: bool = False
    seconds: float = 0.0


def measure(jobs: Sequence[Job], workers: int | None = None, seconds: float = SECONDS) -> list[Outcome]:
    """Outcomes in the order of ``jobs``. Raises ValueError where a kernel cannot even be hashed."""
    keys = [key(job.found.variant, job.arch) for job in jobs]
    outcomes: dict[int, Outcome] = {}
    for number, job in enumerate(jobs):
        if (kept := cache.get(keys[number])) is not None:
            outcomes[number] = Outcome(job, kept, cached=True)
    left = [number for number in range(len(jobs)) if number not in outcomes]
    for number, outcome in _compile_all([(number, jobs[number]) for number in left], workers, seconds):
        outcomes[number] = outcome
        if outcome.made is not None:
            cache.put(keys[number], outcome.made)
    return [outcomes[number] for number in range(len(jobs))]


def _compile_all(jobs: Sequence[tuple[int, Job]], workers: int | None, seconds: float) -> Iterator[tuple[int, Outcome]]:
    if not jobs:
        return
    most = workers or os.cpu_count() or 1
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as scratch:
        # What Triton itself keeps is of no use afterwards. The server's children have the environment of its start.
        os.environ["TRITON_CACHE_DIR"] = scratch
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "triton.compiler", *find.sources()])
        waiting = list(reversed(jobs))
        running: dict[Connection, tuple[int, Job, Any, float]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    number, job = waiting.pop()
                    answers, ours = context.Pipe(duplex=False)
                    arguments = (ours, job.found.source, job.found.name, job.arch, scratch)
                    process = context.Process(target=_work, args=arguments, daemon=True)
                    process.start()
                    ours.close()
                    running[answers] = (number, job, process, time.monotonic() + seconds)
                ready = wait(list(running), timeout=1.0)
                for answers in [one for one in running if one in ready]:
                    number, job, process, _ = running.pop(answers)
                    yield number, _answer(job, answers, process)
                for answers, (number, job, process, until) in list(running.items()):
                    if time.monotonic() > until:
                        process.kill()
                        process.join()
                        del running[answers]
                        yield number, Outcome(job, None, f"not compiled after {seconds:g} s")
        finally:
            for _, _, process, _ in running.values():
                process.kill()
            _put_back("TRITON_CACHE_DIR", before)


def _put_back(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _answer(job: Job, answers: Connection, process: Any) -> Outcome:
    try:
        made, error, seconds = answers.recv()
    except EOFError:
        process.join()
        return Outcome(job, None, f"the compiler crashed (exit status {process.exitcode})")
    process.join()
    return Outcome(job, made, error, seconds=seconds)


def _work(answers: Connection, source: str, name: str, arch: str, scratch: str) -> None:
    """In the new process: finds the variant again, as a kernel cannot be sent, and compiles it."""
    os.environ["TRITON_CACHE_DIR"] = scratch
    variant = next(one.variant for one in find.of(source) if one.name == name)
    try:
        made, error = read(build(variant, arch)), ""
    except CannotCompile as refused:
        made, error = None, str(refused)
    # ptxas and nvdisasm are processes of their own.
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    answers.send((made, error, sum(one.ru_utime + one.ru_stime for one in used)))
