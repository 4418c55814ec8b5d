"""A load: what is served, by an engine of which options, and how the answers are judged. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from workbench.config import EngineConfig
from workbench.measure.drive import Drive
from workbench.measure.metrics import PERCENTILES, serving_metrics
from workbench.measure.slo import Slo
from workbench.measure.workload import Workload

SCHEMA_VERSION = 1
"""Of every benchmark's result."""
REJECTIONS_LISTED = 10


class Load(NamedTuple):
    """What is served, by what, and how the answers are judged."""

    config: EngineConfig
    workload: Workload
    max_concurrency: int | None = None
    """Most requests of an open loop in the engine at once."""
    slo: Slo | None = None
    percentiles: Sequence[float] = PERCENTILES


def metrics(told: Drive, load: Load, max_num_seqs: int) -> dict[str, Any]:
    """The serving metrics of a run, and why requests were rejected."""
    found = serving_metrics(told.traces, len(told.rejected), load.slo, load.percentiles, max_num_seqs)
    return {**found, "rejections": rejections(told)}


def rejections(told: Drive) -> list[dict[str, Any]]:
    """The first of the requests that were refused, and why."""
    return [asdict(lost) for lost in told.rejected[:REJECTIONS_LISTED]]


def described(load: Load) -> dict[str, Any]:
    """The workload as it stands in a result, with what bounds and what judges it."""
    more: dict[str, Any] = {} if load.max_concurrency is None else {"max_concurrency": load.max_concurrency}
    if load.slo is not None:
        more["slo"] = load.slo.to_dict()
    return {**load.workload.description, **more}
