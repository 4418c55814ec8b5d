"""How full the batch and the KV pool were, step by step, from traces alone. No torch.

A slot is a place in the batch; an engine has ``max_num_seqs`` of them in every step. A slot where nothing is computed
is idle: because nobody waits, because a batch may not be joined, or because the pool is full. All steps weigh alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.engine.trace import StepTrace


def occupancy(traces: Sequence[StepTrace], max_num_seqs: int | None = None) -> dict[str, Any]:
    """Means and extremes over the steps. None where a trace does not tell it or there is no step.

    ``idle_slot_steps`` adds up the idle slots of all steps and ``idle_slot_share`` is their share of all slots.
    ``kv_usage`` is the share of the pool's blocks in use when a step has ended, as vLLM's gauge tells it.
    """
    batch = [len(trace.scheduled) for trace in traces]
    tokens = [sum(item["num_tokens"] for item in trace.scheduled) for trace in traces]
    pools = [trace.blocks for trace in traces if trace.blocks.get("total")]
    used = [(pool["total"] - pool["free"]) / pool["total"] for pool in pools]
    idle = None if max_num_seqs is None else sum(max_num_seqs - size for size in batch)
    return {
        "mean_batch_size": _mean(batch),
        "max_batch_size": max(batch, default=None),
        "mean_batched_tokens": _mean(tokens),
        "idle_slot_steps": idle,
        "idle_slot_share": None
        if idle is None or max_num_seqs is None or not batch
        else idle / (max_num_seqs * len(batch)),
        "mean_kv_usage": _mean(used),
        "peak_kv_usage": max(used, default=None),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
