"""Serving metrics from traces alone, under the names of vLLM's benchmark. No torch.

TTFT: arrival to first token. TPOT: (last token − first) / (tokens − 1), so a request of one token has none. ITL: each
gap between two tokens of a request, of all requests pooled. E2EL: arrival to last token. Queue: arrival to the first
step that computed a token of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from workbench.engine.trace import StepTrace
from workbench.measure.occupancy import occupancy
from workbench.measure.served import served_requests
from workbench.measure.slo import Slo

BOOKKEEPING = ("schedule", "prepare", "commit", "detokenize")
"""The phases of a step that are the engine's own work, not the model's."""

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def serving_metrics(
    traces: Iterable[StepTrace],
    rejected: int = 0,
    slo: Slo | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    max_num_seqs: int | None = None,
) -> dict[str, Any]:
    """What a run gave and how long it took, from its first arrival or step to its last step.

    Throughputs are per second. ``request_goodput``: requests a second that kept to ``slo``; ``slo_attainment``: their
    share of all that were asked, the rejected, aborted and unfinished among them. Both None without an SLO.
    ``max_num_seqs`` lets idle slots be counted. Latencies are those of completed requests; where there are none, 0.
    """
    steps = list(traces)
    requests = served_requests(steps)
    completed = [request for request in requests if request.completed]
    starts = [*(request.arrival for request in requests), *(trace.time for trace in steps)]
    duration = max(steps[-1].time + steps[-1].duration - min(starts), 0.0) if steps else 0.0
    per_second = 1 / duration if duration else 0.0
    output = sum(len(request.token_times) for request in completed)
    inputs = sum(request.input_len for request in completed)
    phases: dict[str, float] = {}
    for trace in steps:
        for name, seconds in trace.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
    spent = sum(phases.values())
    good = None if slo is None else sum(slo.met_by(request) for request in requests)
    asked = len(requests) + rejected
    result: dict[str, Any] = {
        "completed": len(completed),
        "rejected": rejected,
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": output,
        "request_throughput": len(completed) * per_second,
        "output_throughput": output * per_second,
        "total_token_throughput": (inputs + output) * per_second,
        "request_goodput": None if good is None else good * per_second,
        "slo": None if slo is None else slo.to_dict(),
        "slo_attainment": None if good is None or not asked else good / asked,
        "num_steps": len(steps),
        "preemptions": sum(len(trace.preempted) for trace in steps),
        "phases": phases,
        "bookkeeping_share": sum(phases.get(name, 0.0) for name in BOOKKEEPING) / spent if spent else 0.0,
        "flops": sum(trace.flops for trace in steps),
        "bytes": sum(trace.bytes for trace in steps),
        **occupancy(steps, max_num_seqs),
    }
    for name in LATENCIES:
        values = [getattr(request, name) for request in completed]
        if name == "itl":
            values = [gap for gaps in values for gap in gaps]
        result |= summary(name, [value for value in values if value is not None], percentiles)
    return result


def summary(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """``mean_…_ms``, ``median_…_ms``, ``std_…_ms`` and ``p99_…_ms`` for each percentile; 99 is always among them."""
    values = np.asarray(seconds) * 1e3 if seconds else np.zeros(1)
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        **{
            f"p{percentile:g}_{name}_ms": float(np.percentile(values, percentile))
            for percentile in sorted({*percentiles, 99.0})
        },
    }
