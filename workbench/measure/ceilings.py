"""What was measured of a device and is kept in ``WORKBENCH_HOME/hardware.json``. Reading it needs no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.files import write_atomically
from workbench.machine import cpu_name, num_cpus, total_memory
from workbench.model.store import home

SCHEMA_VERSION = 2
BUSY = 0.1
"""Share of the processors from which on other programs make a measurement doubtful."""
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
    others: float = 0.0
    """The share of this process's CPUs that other programs took meanwhile."""
    efficiency: dict[str, float] | None = None
    """What a calibration found (`workbench.simulate.validate`): the names are those of `simulate.chips.Efficiency`."""

    @property
    def doubtful(self) -> bool:
        """Whether other programs slowed the measurement down, so that the ceilings are too low."""
        return self.others > BUSY

    @property
    def note(self) -> str:
        """What must be said beside the numbers; empty if nothing."""
        if not self.doubtful:
            return ""
        return f"Other programs took {self.others:.0%} of the processors meanwhile: the rates may be too low."


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


def write_kept(file: Path, entries: dict[str, Any]) -> None:
    """In one go, so that who reads meanwhile sees the old file or the new one. Raises OSError."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, "measured": entries}, indent=2, ensure_ascii=False)
    write_atomically(file, text)


def keep_efficiency(measured: Hardware, efficiency: dict[str, float]) -> None:
    """Beside the ceilings that it belongs to; measured again, they lose it. Raises UsageError if they are not kept."""
    file = kept_file()
    entries = read_kept(file)
    keys = [key for key, entry in entries.items() if restored(entry) == measured]
    if not keys:
        raise UsageError("these ceilings are not the ones that are kept: run `workbench info hardware` first")
    for key in keys:
        entries[key]["efficiency"] = efficiency
    write_kept(file, entries)


def restored(entry: Any) -> Hardware | None:
    """An entry of the file as it was kept; None for one that is damaged."""
    try:
        found = Hardware(**entry)
        rates = [found.read_bandwidth, *found.matmul_flops.values()]
        found.note  # noqa: B018  a share that is none raises
    except (TypeError, AttributeError):
        return None
    good = len(rates) > 1 and all(isinstance(rate, float) and 0 < rate < math.inf for rate in rates)
    return found if good else None
