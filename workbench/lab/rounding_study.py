"""What rounding costs: signal to noise of the usual row, and an error split into what was rounded and what was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.lab.table import Table
from workbench.quant.args import QuantArgs
from workbench.quant.core import dequantize, fake_quant, observed, qparams, quantize
from workbench.quant.formats import format_named, round_to
from workbench.quant.result import snr_db

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


def distribution_table(numbers: Mapping[str, Tensor], limit: float, caption: str = "") -> Table:
    """A row for each tensor: its largest magnitude, `peak`, and how many numbers lie beyond ``limit``."""
    rows = [
        [name, f"{x.abs().max():,.4g}", f"{peak(x):.1f}", f"{int((x.abs() > limit).sum())} of {x.numel():,}"]
        for name, x in numbers.items()
    ]
    return Table(["numbers", "largest", "peak", f"beyond {limit:g}"], rows, caption)


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


def loss_table(exact: Tensor, backs: Mapping[str, Tensor], moved: Mapping[str, float]) -> Table:
    """A row for each way in which ``exact`` came back; ``moved``: what each does to the model's predictions (KL)."""
    rows = []
    for name, back in backs.items():
        gone = float((back[exact != 0] == 0).float().mean())
        snr = f"{snr_db(exact, back):.1f}", f"{middle_snr(exact, back):.1f}"
        rows.append([name, snr[0], f"{gone:.0%}", snr[1], f"{moved[name]:.4f}"])
    return Table(["", "dB, all numbers", "became 0", "dB, median token", "KL"], rows)


def counted_up(name: str, rounding: str, additions: int, seed: int = 0, sums: int = 64) -> float:
    """What 0 becomes when 1 is added so many times and each sum is rounded to a format: the mean of several sums."""
    draw, total, format = torch.Generator().manual_seed(seed), torch.zeros(sums), format_named(name)
    for _ in range(additions):
        total = round_to(total + 1, format, rounding, generator=draw)
    return float(total.mean())


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
