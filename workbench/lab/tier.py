"""The tier: how large the workloads of a lesson are, chosen once from the device and its free memory.

``tiny``: seconds on two CPU cores, for tests. ``cpu``: what a laptop does in minutes. ``gpu``: large enough that a GPU
is busy. `Lesson.pick` takes the value for the tier.
"""

from __future__ import annotations

import os

from workbench.errors import UsageError

TIERS = ("tiny", "cpu", "gpu")
GIB = 1 << 30
CPU_NEEDS = 2 * GIB
"""Free memory below which the sizes of ``cpu`` could fail: weights, their packed copy, and the KV pool."""
GPU_NEEDS = 8 * GIB


def choose_tier(device: str, free_bytes: int) -> str:
    """``WORKBENCH_TIER``, else the largest tier that fits ``free_bytes`` on ``device`` (``cpu`` or ``cuda``).

    Raises UsageError for a tier that does not exist.
    """
    wanted = os.environ.get("WORKBENCH_TIER")
    if wanted:
        if wanted not in TIERS:
            raise UsageError(f"WORKBENCH_TIER={wanted!r} is no tier: choose from {', '.join(TIERS)}, or unset it")
        return wanted
    if device == "cuda" and free_bytes >= GPU_NEEDS:
        return "gpu"
    return "cpu" if free_bytes >= CPU_NEEDS else "tiny"
