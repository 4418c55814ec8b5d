"""Compiles everything that later sections launch, as many kernels at a time as there are processors.

Each contender of each case is called once, and each model's shapes are served for a few tokens, in processes of their
own; what Triton and torch compile lies on disk and is found by the sections. A launch gives the very key that is looked
up later, which compiling ahead of time from a list might not.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from workbench.measure.gpu.report import Report, why
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.sections import SECTIONS

MOST_WORKERS = 16
"""Each holds a context on the GPU, which takes half a GiB."""


def compile_all(scale: Scale, report: Report, name: str) -> None:
    """A row ``{compiled, seconds}`` for each, or ``error``."""
    workers = scale.pick(min(MOST_WORKERS, os.cpu_count() or 1), 1)
    # Not forked: a child of a process that has touched the GPU cannot use it.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[float], str] = {}
        for group, place in _wanted(scale):
            if report.begin(label := f"{group} {place}"):
                waiting[pool.submit(_compile, scale, group, place)] = label
        for done in as_completed(waiting):
            try:
                report.row(compiled=waiting[done], seconds=done.result())
            except Exception as error:  # a compiler that crashes ends all workers; the sections then compile themselves
                report.row(compiled=waiting[done], error=why(error))


def _wanted(scale: Scale) -> Iterator[tuple[str, int]]:
    """Models first: they take longest. Without torch the number of cases is not known, so places are handed out."""
    from workbench.measure.gpu.cases import GROUPS, cases

    for one in SECTIONS:
        if one.name.startswith("engine-") and (one.quick or not scale.quick):
            yield one.name, 0
    for group in GROUPS:
        try:
            found = cases(group, scale)
        except RuntimeError:
            continue  # its own section says why
        yield from ((group, place) for place in range(len(found)))


def _compile(scale: Scale, group: str, place: int) -> float:
    import torch

    begin = time.perf_counter()
    if group.startswith("engine-"):
        _serve_shallow(scale, group.removeprefix("engine-"))
    else:
        from workbench.measure.gpu.cases import cases

        with torch.inference_mode():
            for call in cases(group, scale)[place].make().values():
                _try(call)
    if scale.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return time.perf_counter() - begin


def _try(call: object) -> None:
    """A contender that fails does so again where it is timed, and there it is told."""
    try:
        call()  # type: ignore[operator]
    except Exception:
        return


def _serve_shallow(scale: Scale, model: str) -> None:
    """Kernels do not depend on how many layers there are."""
    from workbench.measure.gpu.engine import opened, served
    from workbench.measure.gpu.models import TINY, folder

    with tempfile.TemporaryDirectory() as scratch:
        source = folder(Path(scratch), model, **(TINY if scale.tiny else {"num_hidden_layers": 2}))
        llm = opened(scale, source, graphs=True)
        for concurrency in scale.pick((1, 32), (1,)):
            served(llm, concurrency, *scale.pick((512, 4), (8, 3)))
