"""Ways to choose the codes of a weight. Each is a pure function that gives a `QuantizedWeight` and a `Report`."""

from workbench.quant.algorithms.awq import AwqResult, awq
from workbench.quant.algorithms.gptq import gptq
from workbench.quant.algorithms.rtn import rtn

__all__ = ["AwqResult", "awq", "gptq", "rtn"]
