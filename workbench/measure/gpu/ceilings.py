"""What this card reaches at most: copying within its memory, and multiplying matrices by cuBLAS."""

from __future__ import annotations

import torch

from workbench.measure.gpu.cases import drawn
from workbench.measure.gpu.clock import timed
from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale

COPY, PRODUCT = "copy", "product"


def ceilings(scale: Scale, report: Report, name: str) -> None:
    """Rows ``{ceiling: "copy" | "product", shape, rate}``: bytes read and written, or FLOPs, a second."""
    for num_bytes in scale.pick((4 << 30, 1 << 30), (1 << 20,)):
        source = torch.empty(num_bytes, dtype=torch.uint8, device=scale.device).random_()
        target = torch.empty_like(source)
        found = timed(lambda source=source, target=target: target.copy_(source), scale.device)  # type: ignore[misc]
        report.row(ceiling=COPY, shape=f"{num_bytes >> 20} MiB", rate=2 * num_bytes / found["seconds"], **found)
        del source, target
    for edge in scale.pick((8192, 4096), (64,)):
        a, b = drawn(edge, edge, scale=scale), drawn(edge, edge, scale=scale, seed=1)
        found = timed(lambda a=a, b=b: torch.mm(a, b), scale.device)  # type: ignore[misc]
        shape = f"{edge}³ {str(a.dtype).removeprefix('torch.')}"
        report.row(ceiling=PRODUCT, shape=shape, rate=2 * edge**3 / found["seconds"], **found)
