"""Which machine this is, and of which code the numbers are."""

from __future__ import annotations

import torch

from workbench.errors import WorkbenchError
from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale
from workbench.measure.provenance import driver, provenance


def device(scale: Scale, report: Report, name: str) -> None:
    there = torch.device(scale.device)
    if there.type == "cuda" and not torch.cuda.is_available():
        report.row(no_gpu=True, error="torch sees no GPU here; --device cpu --tiny rehearses without one")
        return
    source = provenance(there)
    row = {"provenance": source, "device": source["device"], "driver": None}
    if there.type == "cuda":
        made = torch.cuda.get_device_properties(there)
        row |= {"driver": _driver(), "cuda": torch.version.cuda, "capability": f"{made.major}.{made.minor}",
                "multiprocessors": made.multi_processor_count, "memory_bytes": made.total_memory,
                "l2_bytes": made.L2_cache_size}  # fmt: skip
    else:
        row["device"] = source["cpu"]
    report.row(**row)


def _driver() -> str | None:
    """None where it cannot be asked: the rest is worth measuring all the same."""
    try:
        return driver()
    except WorkbenchError:
        return None
