"""Serving metrics from traces alone, under the names of vLLM's benchmark. No torch.

TTFT: arrival to first token. TPOT: (last token − first) / (tokens − 1), so a request of one token has none. ITL: each
gap between two tokens of a request, of all requests pooled. E2EL: arrival to last token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from workbench.engine.trace import StepTrace

BOOKKEEPING = ("schedule", "prepare", "commit", "detokenize")
"""The phases of a step that are the engine's own work, not the model's."""


def serving_metrics(traces: Iterable[StepTrace], rejected: int = 0) -> dict[str, Any]:
    """What a run gave and how long it took, from its first arrival or step to its last step.

    Throughputs are per second; ``request_goodput`` is None without an SLO to hold the requests to.
    """
    arrivals: dict[str, float] = {}
    prompt_tokens: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    completed: list[str] = []
    phases: dict[str, float] = {}
    start, end, steps, preemptions, flops, num_bytes = float("inf"), 0.0, 0, 0, 0, 0
    for trace in traces:
        for event in trace.inputs:
            if "add" in event:
                added = event["add"]
                arrivals[added["request_id"]] = added["arrival_time"]
                prompt_tokens[added["request_id"]] = len(added.get("prompt_token_ids", ()))
                start = min(start, added["arrival_time"])
        start = min(start, trace.time)
        end = trace.time + trace.duration
        for new in trace.new_tokens:
            times.setdefault(new["request_id"], []).append(end)
        completed += [done["request_id"] for done in trace.finished if done["reason"] != "abort"]
        for name, seconds in trace.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
        steps += 1
        preemptions += len(trace.preempted)
        flops += trace.flops
        num_bytes += trace.bytes
    duration = max(end - start, 0.0) if steps else 0.0
    spent = sum(phases.values())
    output = sum(len(times[r]) for r in completed)
    inputs = sum(prompt_tokens[r] for r in completed)
    per_second = 1 / duration if duration else 0.0
    result: dict[str, Any] = {
        "completed": len(completed),
        "rejected": rejected,
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": output,
        "request_throughput": len(completed) * per_second,
        "output_throughput": output * per_second,
        "total_token_throughput": (inputs + output) * per_second,
        "request_goodput": None,
        "num_steps": steps,
        "preemptions": preemptions,
        "phases": phases,
        "bookkeeping_share": sum(phases.get(name, 0.0) for name in BOOKKEEPING) / spent if spent else 0.0,
        "flops": flops,
        "bytes": num_bytes,
    }
    each = {
        "ttft": [times[r][0] - arrivals[r] for r in completed],
        "tpot": [(times[r][-1] - times[r][0]) / (len(times[r]) - 1) for r in completed if len(times[r]) > 1],
        "itl": [b - a for r in completed for a, b in zip(times[r], times[r][1:], strict=False)],
        "e2el": [times[r][-1] - arrivals[r] for r in completed],
    }
    for name, seconds in each.items():
        result |= _summary(name, seconds)
    return result


def _summary(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = np.asarray(seconds) * 1e3 if seconds else np.zeros(1)
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"p99_{name}_ms": float(np.percentile(values, 99)),
    }
