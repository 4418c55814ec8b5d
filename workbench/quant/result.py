"""What quantizing one weight gives: the canonical form that every checkpoint format is made of, and a report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.quant.args import QuantArgs
from workbench.quant.core import QParams, dequantize, from_grid
from workbench.quant.stats import InputStats


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight ``[N, K]`` as codes, with what turns them into numbers."""

    q: Tensor
    """``[N, K]``: int8, −8 … 7 of int4; of floats the float32 numbers of the format"""
    params: QParams
    """``[N, K / group]`` of groups"""
    args: QuantArgs
    group_of: Tensor | None = None
    """``[K]`` int64: the group of each column, where groups are no neighbours (act-order; ``g_idx`` of checkpoints)"""

    def dequantize(self) -> Tensor:
        """float32 ``[N, K]``"""
        if self.group_of is None:
            return dequantize(self.q, self.params, self.args)
        zero = self.params.zero
        return from_grid(self.q, self.params.step[:, self.group_of], None if zero is None else zero[:, self.group_of])


@dataclass(frozen=True, slots=True)
class Report:
    """How well it went, of one weight."""

    name: str
    algorithm: str
    snr_db: float
    """Of the weight: its sum of squares by that of its error."""
    output_error: float | None = None
    """Squared error of the outputs by their squares, over the calibration tokens; None without calibration."""
    dead_columns: int = 0
    """Inputs that were 0 in every token."""
    damping: float | None = None
    """Share of the mean diagonal that was added to the Hessian (GPTQ)."""
    fallbacks: tuple[str, ...] = ()
    """What was done in another way than asked, and why. Empty where all went well."""


def snr_db(exact: Tensor, approximate: Tensor) -> float:
    """Signal to noise in decibels; infinity where there is no noise."""
    noise = (exact.double() - approximate.double()).square().sum()
    return float(10 * torch.log10(exact.double().square().sum() / noise))


def report(
    name: str,
    algorithm: str,
    exact: Tensor,
    back: Tensor,
    stats: InputStats | None = None,
    *,
    dead_columns: int = 0,
    damping: float | None = None,
    fallbacks: tuple[str, ...] = (),
) -> Report:
    """Compares a weight with what came back of it."""
    error = None
    if stats is not None:
        whole = stats.error([exact.float()])
        error = stats.error([back - exact.float()]) / whole if whole else 0.0
    return Report(name, algorithm, snr_db(exact, back), error, dead_columns, damping, fallbacks)
