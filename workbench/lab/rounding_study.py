"""What rounding costs: signal to noise of the usual row, and an error split into what was rounded and what was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.core import dequantize, fake_quant, observed, qparams, quantize

TENSOR = {
    "INT8": QuantArgs(8, strategy="tensor", symmetric_range="narrow"),
    "FP8 E4M3": QuantArgs(8, "float", "tensor"),
    "INT4": QuantArgs(4, strategy="tensor", symmetric_range="narrow"),
    "FP4 E2M1": QuantArgs(4, "float", "tensor"),
}
"""Formats with one scale for the whole tensor, by which its largest magnitude becomes the format's largest number."""


class Errors(NamedTuple):
    """Squared errors as shares of the squares."""

    rounding: float
    clamping: float

    @property
    def both(self) -> float:
        return self.rounding + self.clamping


def samples(seed: int = 0, rows: int = 64, columns: int = 1024) -> dict[str, Tensor]:
    """Random numbers of known distributions, the same on every machine."""
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, columns, generator=draw)
    return {"uniform": 2 * torch.rand(rows, columns, generator=draw) - 1, "normal": normal}


def peak(x: Tensor) -> float:
    """The largest magnitude by the root of the mean square."""
    return float(x.abs().max() / x.double().square().mean().sqrt())


def middle_snr(exact: Tensor, back: Tensor) -> float:
    """Signal to noise in decibels of the middle row (median; rows of zeros are left out).

    Of a whole tensor it would be that of its largest numbers: a few giants that come back well hide that all others
    have become 0. A row that is gone has 0 dB, one without noise infinity.
    """
    signal = exact.double().square().sum(-1)
    noise = (exact.double() - back.double()).square().sum(-1)
    if not bool((signal > 0).any()):
        raise UsageError("all rows are 0: there is no signal")
    return float((10 * torch.log10(signal / noise))[signal > 0].median())


def snr_by_format(
    numbers: Mapping[str, Tensor], formats: Mapping[str, QuantArgs], **changes: object
) -> dict[str, dict[str, float]]:
    """`middle_snr` of each tensor ``[rows, columns]`` in each format. ``changes``: fields of all `QuantArgs`."""
    args = {name: replace(one, **changes) for name, one in formats.items()}  # type: ignore[arg-type]
    return {
        tensor: {name: middle_snr(x, fake_quant(x, one, name=tensor)) for name, one in args.items()}
        for tensor, x in numbers.items()
    }


def clip_errors(x: Tensor, args: QuantArgs, shares: Sequence[float]) -> dict[float, Errors]:
    """The errors of ``x`` ``[…, K]`` by the share of each block's range that is covered; whole numbers.

    A number counts as clamped where it lies beyond the last code's.
    """
    if args.element is not None:
        raise UsageError(f"clip_errors is for whole numbers, not for {args.element.name}")
    low, high = observed(x, args)
    energy, found = x.double().square().sum(), {}
    for share in shares:
        if not 0 < share <= 1:
            raise UsageError(f"share={share!r}: cover more than 0 and at most 1 of the range")
        params = qparams(low * share, high * share, args)
        codes = quantize(x, params, args)
        back = dequantize(codes, params, args)
        errors = (x.double() - back.double()).square() / energy
        beyond = ((codes == args.max) | (codes == args.min)) & (x.abs() > back.abs())
        found[share] = Errors(float(errors[~beyond].sum()), float(errors[beyond].sum()))
    return found
