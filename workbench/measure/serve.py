"""``bench serve``: requests that arrive over time, served by an engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from workbench.config import EngineConfig
from workbench.errors import WorkbenchError
from workbench.llm import LLM
from workbench.measure.drive import Drive, drive
from workbench.measure.metrics import PERCENTILES, serving_metrics
from workbench.measure.result import as_result, warm_up
from workbench.measure.slo import Slo
from workbench.measure.workload import Workload

REJECTIONS_LISTED = 10


class Load(NamedTuple):
    """What is served, by what, and how the answers are judged."""

    config: EngineConfig
    workload: Workload
    max_concurrency: int | None = None
    """Most requests of an open loop in the engine at once."""
    slo: Slo | None = None
    percentiles: Sequence[float] = PERCENTILES


def run(load: Load, llm: LLM | None = None) -> dict[str, Any]:
    """Serves the workload once and returns vLLM's keys with where they come from.

    ``llm``: one that is open already with this config. Raises WorkbenchError when every request is rejected.
    """
    llm = llm or LLM(load.config)
    warm_up(llm)
    told = drive(llm.engine, load.workload, llm.model_config.vocab_size, load.max_concurrency)
    if not told.answers:
        raise WorkbenchError(f"all {len(told.rejected)} requests are rejected; the first: {told.rejected[0].why}")
    return as_result("serve", llm, described(load), metrics(told, load, llm.config.max_num_seqs))


def metrics(told: Drive, load: Load, max_num_seqs: int) -> dict[str, Any]:
    """The serving metrics of a run, and why requests were rejected."""
    found = serving_metrics(told.traces, len(told.rejected), load.slo, load.percentiles, max_num_seqs)
    return {**found, "rejections": [asdict(lost) for lost in told.rejected[:REJECTIONS_LISTED]]}


def described(load: Load) -> dict[str, Any]:
    """The workload as it stands in a result, with what bounds and what judges it."""
    more: dict[str, Any] = {} if load.max_concurrency is None else {"max_concurrency": load.max_concurrency}
    if load.slo is not None:
        more["slo"] = load.slo.to_dict()
    return {**load.workload.description, **more}
