"""What was measured of a device and is kept in ``WORKBENCH_HOME/hardware.json``. Reading it needs no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.machine import cpu_name, num_cpus, total_memory
from workbench.model.store import home

SCHEMA_VERSION = 1
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device and its measured ceilings."""

    device: str
    """``cpu`` or ``cuda``"""
    name: str
    capability: str
    """Compute capability of a GPU (``9.0``); the vector instructions torch uses on a CPU (``AVX2``)."""
    memory_bytes: int
    sms: int | None
    """Streaming multiprocessors of a GPU."""
    read_bandwidth: float
    """Bytes per second."""
    matmul_flops: dict[str, float]
    """FLOP/s (a multiply and an add are two) by dtype, for those that this torch multiplies on this device."""
    threads: int
    """CPU threads that torch computes with."""
    measured_at: str
    """Date and time, ISO 8601."""
    provenance: dict[str, Any]


def kept_file() -> Path:
    return home() / "hardware.json"


def kept_cpu() -> Hardware | None:
    """This machine's processor as it was measured last, with whatever number of threads and version of torch."""
    start = key_start("cpu", cpu_name(), cpu_name(), num_cpus(), total_memory())
    found = [restored(entry) for key, entry in read_kept(kept_file()).items() if key.startswith(start)]
    return max((one for one in found if one is not None), key=lambda one: one.measured_at, default=None)


def key_start(device: str, name: str, cpu: str, cpus: int, memory_bytes: int) -> str:
    """What a measurement is good for, as far as the machine says it: this device, in this machine."""
    return f"{device}: {name}; {cpu}, {cpus} CPUs, {memory_bytes // MIB} MiB; "


def read_kept(file: Path) -> dict[str, Any]:
    """What is kept, by key; nothing if there is no such file or it is damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        entries = kept["measured"] if kept["schema_version"] == SCHEMA_VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return entries if isinstance(entries, dict) else {}


def restored(entry: Any) -> Hardware | None:
    """An entry of the file as it was kept; None for one that is damaged."""
    try:
        found = Hardware(**entry)
        rates = [found.read_bandwidth, *found.matmul_flops.values()]
    except (TypeError, AttributeError):
        return None
    good = len(rates) > 1 and all(isinstance(rate, float) and 0 < rate < math.inf for rate in rates)
    return found if good else None
