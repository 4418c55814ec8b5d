"""AWQ (Lin et al. 2023): weights that meet large activations are made larger before rounding, and the activations
smaller by as much, which changes nothing but the rounding; then ranges are cut where that lessens the output's error.

The scales of a channel are a power of its mean activation, and the power is searched. Weights that read the same inputs
share them, since the inverse goes into what makes these inputs: a norm's weight, or the rows of a matrix before.

Differences from AutoAWQ: errors are those of the matrices' own outputs over all calibration tokens, from Σxxᵀ, not of a
whole block's output on a sample; leaving the weights as they are is one of the candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.quant.args import QuantArgs
from workbench.quant.core import blocked, fake_quant, observed, qparams, quantize, rounded, unblocked
from workbench.quant.result import QuantizedWeight, Report, report
from workbench.quant.stats import InputStats

POWERS = 20
CUTS, MOST_CUT = 20, 0.5
_LEAST = 1e-4


class AwqResult(NamedTuple):
    """Weights that read the same inputs, quantized together."""

    weights: dict[str, QuantizedWeight]
    """Of ``weight · channel_scale``."""
    channel_scale: Tensor
    """``[K]`` float32: what makes the inputs must be divided by it."""
    reports: dict[str, Report]
    power: float | None
    """Of the mean activation; None: the weights are best left as they are."""


def awq(
    weights: Mapping[str, Tensor],
    stats: InputStats,
    args: QuantArgs,
    *,
    scale: bool = True,
    clip: Collection[str] | None = None,
) -> AwqResult:
    """Quantizes weights ``[N, K]`` that read the same inputs.

    Args:
        scale: whether the inputs can be divided at all: what makes them may be shared with others.
        clip: names whose ranges may be cut; None is all. AutoAWQ leaves out query and key, whose errors are not summed
            but multiplied with each other.
    """
    exact = {name: weight.float() for name, weight in weights.items()}
    power, channel = _search_scale(exact, stats, args) if scale else (None, torch.ones(len(stats.gram)))
    gram = stats.gram / (channel[:, None] * channel)  # of the divided inputs
    made, reports = {}, {}
    for name, weight in exact.items():
        scaled = weight * channel
        may_clip = (clip is None or name in clip) and args.strategy in ("channel", "group")
        ranges = _search_clip(scaled, gram, args, name) if may_clip else observed(scaled, args, name)
        params = qparams(*ranges, args)
        made[name] = QuantizedWeight(quantize(scaled, params, args, name), params, args)
        reports[name] = report(name, "awq", weight, made[name].dequantize() / channel, stats)
    return AwqResult(made, channel, reports, power)


def _search_scale(weights: Mapping[str, Tensor], stats: InputStats, args: QuantArgs) -> tuple[float | None, Tensor]:
    """The power with the least error, and the scales ``[K]`` it makes."""
    plain = torch.ones(len(stats.gram))
    best: tuple[float | None, Tensor] = (None, plain)
    least = _error(weights, plain, stats, args)
    of_inputs, of_weights = stats.mean_magnitude, _relative_size(weights, args)
    for i in range(POWERS):
        power = i / POWERS
        channel = (of_inputs**power / (of_weights ** (1 - power) + _LEAST)).clamp_min(_LEAST)
        channel = channel / (channel.max() * channel.min()).sqrt()
        if not bool(channel.isfinite().all()):
            continue
        error = _error(weights, channel, stats, args)
        if error < least:
            least, best = error, (power, channel)
    return best


def _relative_size(weights: Mapping[str, Tensor], args: QuantArgs) -> Tensor:
    """Mean over rows of each weight's share of the largest in its group, ``[K]``."""
    shares = []
    for name, weight in weights.items():
        view = blocked(weight.abs(), args.block_size(weight.shape, name))
        shares.append(unblocked(view / (view.amax((1, 3), keepdim=True) + 1e-6), weight.shape))
    return torch.cat(shares).mean(0)


def _error(weights: Mapping[str, Tensor], channel: Tensor, stats: InputStats, args: QuantArgs) -> float:
    return stats.error([fake_quant(w * channel, args, name=name) / channel - w for name, w in weights.items()])


def _search_clip(weight: Tensor, gram: Tensor, args: QuantArgs, name: str) -> tuple[Tensor, Tensor]:
    """For each row and group the cut of its range under which its own part of the output is least wrong."""
    width = args.block_size(weight.shape, name)[1]
    low, high = observed(weight, args, name)
    largest = torch.maximum(-low, high)
    view = blocked(weight, (1, width))  # [N, 1, groups, width]
    # What inputs of one group do together: [groups, width, width] out of Σxxᵀ.
    parts = len(gram) // width
    gram = gram.reshape(parts, width, parts, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    best_low, best_high, least = low, high, torch.full_like(low, torch.inf)
    for i in range(int(CUTS * MOST_CUT)):
        reach = largest * (1 - i / CUTS)
        cut_low, cut_high = torch.maximum(low, -reach), torch.minimum(high, reach)
        back = rounded(view, qparams(cut_low, cut_high, args), args)
        off = (back - view)[:, 0].transpose(0, 1)  # [groups, N, width]
        error = (off.bmm(gram) * off).sum(-1).T
        better = error < least
        least = torch.where(better, error, least)
        best_low, best_high = torch.where(better, cut_low, best_low), torch.where(better, cut_high, best_high)
    return best_low, best_high
