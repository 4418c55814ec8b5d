"""``bench latency``: one batch that arrives at once, again and again; how long until its last token is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.config import EngineConfig
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.llm import LLM
from workbench.measure.drive import drive
from workbench.measure.metrics import PERCENTILES, serving_metrics
from workbench.measure.result import as_result, warm_up
from workbench.measure.workload import uniform_workload


def run(
    config: EngineConfig,
    batch_size: int,
    input_len: int,
    output_len: int,
    warm_ups: int = 1,
    iterations: int = 5,
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """``iterations`` batches, after ``warm_ups`` that are not counted; the prefix cache is emptied before each.

    Under vLLM's names ``latencies`` (seconds, each from arrival to the last token of the batch), ``avg_latency`` and
    ``percentiles``; beside them the serving metrics of all counted batches together.
    """
    llm = LLM(config)
    workload = uniform_workload(batch_size, (input_len,) * 2, (output_len,) * 2, config.seed)
    warm_up(llm)
    latencies: list[float] = []
    traces: list[StepTrace] = []
    for iteration in range(warm_ups + iterations):
        llm.engine.reset_prefix_cache()
        told = drive(llm.engine, workload, llm.model_config.vocab_size)
        if told.rejected:
            raise UsageError(f"a batch of {batch_size} × ({input_len} + {output_len}) tokens: {told.rejected[0].why}")
        if iteration >= warm_ups:
            last = told.traces[-1]
            latencies.append(last.time + last.duration - told.arrivals[0])
            traces += told.traces
    measured = {
        **serving_metrics(traces, percentiles=percentiles, max_num_seqs=llm.config.max_num_seqs),
        "avg_latency": float(np.mean(latencies)),
        "median_latency": float(np.median(latencies)),
        "latencies": latencies,
        "percentiles": {f"{p:g}": float(np.percentile(latencies, p)) for p in sorted({*percentiles})},
    }
    description = {"kind": "latency", "batch_size": batch_size, "warm_ups": warm_ups, "iterations": iterations}
    return as_result("latency", llm, {**workload.description, **description}, measured)
