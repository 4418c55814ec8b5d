"""How a block's scale is stored: as a float, as a power of two (E8M0), or as E4M3 under one scale of the whole tensor.

What is stored is not what was wanted, and numbers are rounded under the stored scale; so the rounding of a scale
decides whether a block's largest number is clipped (scale too small) or the grid stretched (too large).
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.formats import BF16, E4M3, E8M0, FP16, FP32, FloatFormat, power_of_two, round_to

POWER_MODES = ("floor", "even", "ceil", "rceil")
"""How E8M0 rounds. ``floor``: OCP MX 1.0, the largest number's power of two becomes the element's top one, so up to
8/6 of FP4's range is clipped. ``even``: the same after rounding the largest number to the element's mantissa bits
(compressed-tensors). ``ceil``: the next power of two up, nothing is clipped. ``rceil``: the least power of two under
which the largest number fits. Names and meanings as in torchao."""
FP16_FEW_DIGITS = FloatFormat("fp16_7_digits", 5, 6)
"""float16 with 7 binary digits of 11: times a zero point of 4 bits float16 holds it too (offsets of GGUF's Q4_1)."""
FLOAT_SCALES = {f.name: f for f in (FP32, FP16, BF16, FP16_FEW_DIGITS)}
BLOCK_SCALES = {f.name: f for f in (E8M0, E4M3)}


def float_scale(wanted: Tensor, format: FloatFormat) -> Tensor:
    """Scales rounded to a float format; one that would become 0 becomes the smallest there is, and that of a block of
    zeros 1. Raises ValueError for a scale beyond the format."""
    if bool((wanted > format.max).any()):
        most = float(wanted.max())
        raise ValueError(f"a scale of {most:.3g} is beyond {format.name}'s {format.max:g}: keep scales in bf16 or fp32")
    kept = wanted.float() if format is FP32 else round_to(wanted, format)
    return torch.where(wanted > 0, kept.clamp_min(max(format.tiny, FP32.smallest_normal)), 1.0)


def power_scale(largest: Tensor, element: FloatFormat, mode: str = "floor") -> Tensor:
    """E8M0 scales, as float32 powers of two, for blocks whose largest magnitude is ``largest``."""
    if mode not in POWER_MODES:
        raise UsageError(f"scale mode {mode!r} is not known; choose from {', '.join(POWER_MODES)}")
    values = largest.double()
    if mode == "rceil":
        exponent = _log2_up(values / element.max)
    elif mode == "ceil":
        exponent = _log2_up(values) - element.top_exponent
    else:
        if mode == "even":
            values = round_to(values, FloatFormat("", 8, element.mantissa_bits)).double()
        exponent = torch.frexp(values).exponent - 1 - element.top_exponent
    exponent = torch.where(largest > 0, exponent, -E8M0.bias).clamp(-E8M0.bias, E8M0.bias)
    return power_of_two(exponent.long()).float()


def tensor_scale(largest: Tensor, element: FloatFormat) -> Tensor:
    """The scale of the whole tensor above E4M3 scales: its largest block gets 448, the largest E4M3 there is (NVFP4).

    It multiplies; compressed-tensors stores the reciprocal.
    """
    wanted = largest.amax().float() / (element.max * E4M3.max)
    return torch.where(wanted > 0, wanted.clamp_min(FP32.smallest_normal), 1.0)


def e4m3_scale(largest: Tensor, element: FloatFormat, above: Tensor, rounding: str = "nearest") -> Tensor:
    """E4M3 scales, as float32, under ``above``, the scale of the whole tensor; at least 2^-9, never 0.

    Raises ValueError if ``above`` is too small for the tensor: it is another one's, or not shared by all that share it.
    """
    wanted = largest.double() / element.max / above.double()
    if bool((wanted > E4M3.max * 1.03).any()):
        covered = float(above) * E4M3.max * element.max
        raise ValueError(
            f"the tensor's scale {float(above):.4g} covers numbers up to {covered:.4g}, and there is one of "
            f"{float(largest.max()):.4g}: take the scale of all tensors that share it together"
        )
    return round_to(wanted, E4M3, rounding).clamp_min(E4M3.tiny)


def _log2_up(values: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(values)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)
