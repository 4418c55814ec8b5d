"""Serving metrics from traces alone, under the names of vLLM's benchmark. No torch.

TTFT: arrival to first token. TPOT: (last token − first) / (tokens − 1), so a request of one token has none. ITL: each
gap between two tokens of a request, of all requests pooled. E2EL: arrival to last token. Queue: arrival to the first
step that computed a token of the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.engine.trace import StepTrace
from workbench.measure.occupancy import Occupancy
from workbench.measure.served import ServedLog
from workbench.measure.slo import Slo

BOOKKEEPING = ("schedule", "prepare", "commit", "detokenize")
"""The phases of a step that are the engine's own work, not the model's."""

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


class ServingRecord:
    """Takes steps one after the other and keeps what the metrics need, so that a long run need not be held whole."""

    def __init__(self) -> None:
        self.log = ServedLog()
        self.occupancy = Occupancy()
        self.phases: dict[str, float] = {}
        self.preemptions = self.flops = self.bytes = 0
        self.queried: dict[str, int] = {}
        self.start, self.end = math.inf, 0.0

    def add(self, trace: StepTrace) -> None:
        self.log.add(trace)
        self.occupancy.add(trace)
        self.start, self.end = min(self.start, trace.time), trace.time + trace.duration
        self.preemptions += len(trace.preempted)
        self.flops += trace.flops
        self.bytes += trace.bytes
        for name, count in trace.queried.items():
            self.queried[name] = self.queried.get(name, 0) + count
        for name, seconds in trace.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    def result(
        self,
        rejected: int = 0,
        slo: Slo | None = None,
        percentiles: Sequence[float] = PERCENTILES,
        max_num_seqs: int | None = None,
    ) -> dict[str, Any]:
        """As `serving_metrics` tells it."""
        requests = self.log.requests
        completed = [request for request in requests if request.completed]
        start = min([self.start, *(request.arrival for request in requests)])
        duration = max(self.end - start, 0.0) if self.occupancy.steps else 0.0
        per_second = 1 / duration if duration else 0.0
        output = sum(len(request.token_times) for request in completed)
        inputs = sum(request.input_len for request in completed)
        spent = sum(self.phases.values())
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
            "num_steps": self.occupancy.steps,
            "preemptions": self.preemptions,
            **hits(self.queried),
            "phases": dict(self.phases),
            "bookkeeping_share": sum(self.phases.get(name, 0.0) for name in BOOKKEEPING) / spent if spent else 0.0,
            "flops": self.flops,
            "bytes": self.bytes,
            **self.occupancy.result(max_num_seqs),
        }
        for name in LATENCIES:
            values = [getattr(request, name) for request in completed]
            if name == "itl":
                values = [gap for gaps in values for gap in gaps]
            result |= summary(name, [value for value in values if value is not None], percentiles)
        return result


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
    record = ServingRecord()
    for trace in traces:
        record.add(trace)
    return record.result(rejected, slo, percentiles, max_num_seqs)


def hits(queried: Mapping[str, int]) -> dict[str, Any]:
    """``prefix_cache_queries`` and ``_hits``: prompt tokens that were asked for and that were cached, as vLLM counts
    them; ``_hit_rate`` of tokens and ``_block_hit_rate`` of whole blocks. None without prefix caching, or where nobody
    asked.

    ``queried``: `StepTrace.queried`, added up.
    """
    tokens, blocks = queried.get("query_tokens"), queried.get("query_blocks")
    return {
        "prefix_cache_queries": tokens,
        "prefix_cache_hits": queried.get("hit_tokens"),
        "prefix_cache_hit_rate": queried["hit_tokens"] / tokens if tokens else None,
        "prefix_cache_block_hit_rate": queried["hit_blocks"] / blocks if blocks else None,
    }


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
