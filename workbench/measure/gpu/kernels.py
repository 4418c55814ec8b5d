"""Times the cases of a section, every contender of each."""

from __future__ import annotations

import torch

from workbench.measure.gpu.cases import cases
from workbench.measure.gpu.clock import timed
from workbench.measure.gpu.report import Report, why
from workbench.measure.gpu.scale import Scale


def kernels(scale: Scale, report: Report, name: str) -> None:
    """A row for each contender: ``{case, contender, flops, bytes, seconds, low, high, graph}``, or ``error``."""
    try:
        found = cases(name, scale)
    except RuntimeError as error:
        report.row(left_out=str(error))
        return
    with torch.inference_mode():
        for case in found:
            if not report.begin(case.name):
                continue
            work = {"case": case.name, "flops": case.flops, "bytes": case.bytes}
            try:
                contenders = case.make()
            except Exception as error:  # it does not fit into memory, say: the next case may
                report.row(**work, error=why(error))
                continue
            for contender, call in contenders.items():
                row = work | {"contender": contender}
                try:
                    row |= timed(call, scale.device)
                except Exception as error:  # whatever it is: the next contender may do better
                    row["error"] = why(error)
                report.row(**row)
                if scale.device == "cuda":
                    torch.cuda.synchronize()  # a broken context ends this process here, and the next one goes on
