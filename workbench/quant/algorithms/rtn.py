"""Round to nearest: each number by itself. What the other algorithms must beat."""

from __future__ import annotations

from torch import Tensor

from workbench.quant.args import QuantArgs
from workbench.quant.core import qparams, quantize
from workbench.quant.observers import observe
from workbench.quant.result import QuantizedWeight, Report, report
from workbench.quant.stats import InputStats


def rtn(
    weight: Tensor, args: QuantArgs, stats: InputStats | None = None, name: str = "weight"
) -> tuple[QuantizedWeight, Report]:
    """Rounds ``weight`` ``[N, K]``. ``stats`` of its inputs only serve the report."""
    params = qparams(*observe(weight, args, name=name), args)
    made = QuantizedWeight(quantize(weight, params, args, name), params, args)
    return made, report(name, "rtn", weight, made.dequantize(), stats)
