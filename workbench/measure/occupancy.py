"""How full the batch and the KV pool were, step by step, from traces alone. No torch.

A slot is a place in the batch; an engine has ``max_num_seqs`` of them in every step. A slot where nothing is computed
is idle: because nobody waits, because a batch may not be joined, or because the pool is full. All steps weigh alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.engine.trace import StepTrace


class Occupancy:
    """Adds up what `occupancy` tells, one step after the other."""

    def __init__(self) -> None:
        self.steps = self.requests = self.tokens = self.most = 0
        self.pools = 0
        """Steps that tell of a pool."""
        self.used = self.most_used = 0.0

    def add(self, trace: StepTrace) -> None:
        size = len(trace.scheduled)
        self.steps += 1
        self.requests += size
        self.tokens += sum([item["num_tokens"] for item in trace.scheduled])
        self.most = max(self.most, size)
        if total := trace.blocks.get("total"):
            used = (total - trace.blocks["free"] - trace.blocks.get("cached", 0)) / total
            self.pools += 1
            self.used += used
            self.most_used = max(self.most_used, used)

    def result(self, max_num_seqs: int | None = None) -> dict[str, Any]:
        steps, pools = self.steps, self.pools
        slots = None if max_num_seqs is None else max_num_seqs * steps
        idle = None if slots is None else slots - self.requests
        return {
            "mean_batch_size": self.requests / steps if steps else None,
            "max_batch_size": self.most if steps else None,
            "mean_batched_tokens": self.tokens / steps if steps else None,
            "idle_slot_steps": idle,
            "idle_slot_share": idle / slots if slots and idle is not None else None,
            "mean_kv_usage": self.used / pools if pools else None,
            "peak_kv_usage": self.most_used if pools else None,
        }


def occupancy(traces: Sequence[StepTrace], max_num_seqs: int | None = None) -> dict[str, Any]:
    """Means and extremes over the steps. None where a trace does not tell it or there is no step.

    ``idle_slot_steps`` adds up the idle slots of all steps and ``idle_slot_share`` is their share of all slots.
    ``kv_usage`` is the share of the pool's blocks in use when a step has ended, as vLLM's gauge tells it; blocks that
    are cached and held by nobody are not in use.
    """
    told = Occupancy()
    for trace in traces:
        told.add(trace)
    return told.result(max_num_seqs)
