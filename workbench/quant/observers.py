"""Where ranges come from: what is seen of a tensor, block by block, becomes the least and largest number to cover.

Weights are seen once; activations batch by batch, and then an observer joins what each batch says. Covering everything
is not the aim: one outlier stretches the grid for all others of its block, and cutting it off may cost less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.core import blocked, qparams, rounded

Range = tuple[Tensor, Tensor]


class Options(NamedTuple):
    """How observers observe."""

    momentum: float = 0.1
    """Weight of a new batch in a running mean (``ema``, ``percentile``, ``mse``)."""
    percentile: float = 99.9
    """Share of a block's magnitudes, in percent, that is covered (``percentile``)."""
    steps: int = 100
    """``mse`` tries the whole range, then cuts it by 1/steps at a time …"""
    most_cut: float = 0.8
    """… down to this share of it."""
    norm: float = 2.4
    """``mse`` sums |error|^norm: GPTQ's."""


def _extremes(view: Tensor, args: QuantArgs, options: Options) -> Range:
    return view.amin((1, 3)).clamp_max_(0), view.amax((1, 3)).clamp_min_(0)


def _percentile(view: Tensor, args: QuantArgs, options: Options) -> Range:
    """The same share is cut off at both ends, half each."""
    low, high = _extremes(view, args, options)
    numbers = view.transpose(1, 2).flatten(2)
    tail = (100 - options.percentile) / 200
    rank = max(1, round(numbers.shape[-1] * (1 - tail)))  # by rank: an observed number, not one between two
    ordered = numbers.sort(-1).values
    return torch.maximum(low, ordered[..., -rank]).clamp_max(0), torch.minimum(high, ordered[..., rank - 1]).clamp_min(
        0
    )


def _least_error(view: Tensor, args: QuantArgs, options: Options) -> Range:
    """Shrinks each block's range as long as the error of its numbers falls."""
    low, high = _extremes(view, args, options)
    best_low, best_high = low.clone(), high.clone()
    least = torch.full_like(low, torch.inf)
    for i in range(int(options.most_cut * options.steps)):
        keep = 1 - i / options.steps
        error = (
            (rounded(view, qparams(low * keep, high * keep, args), args) - view).abs_().pow_(options.norm).sum((1, 3))
        )
        better = error < least
        least = torch.where(better, error, least)
        best_low, best_high = torch.where(better, low * keep, best_low), torch.where(better, high * keep, best_high)
    return best_low, best_high


OBSERVERS: dict[str, Callable[[Tensor, QuantArgs, Options], Range]] = {
    "minmax": _extremes,
    "ema": _extremes,
    "percentile": _percentile,
    "mse": _least_error,
}
"""``minmax`` covers all that was ever seen, the others a running mean of what each batch says: its extremes, its
percentile, or the range of least error."""


def observe(x: Tensor, args: QuantArgs, options: Options = Options(), name: str = "tensor") -> Range:  # noqa: B008
    """The range of each block of one tensor ``[…, K]``, by ``args.observer``. Raises UsageError for unknown names."""
    if args.observer not in OBSERVERS:
        raise UsageError(f"observer {args.observer!r} is not known; choose from {', '.join(OBSERVERS)}")
    return OBSERVERS[args.observer](blocked(x.float(), args.block_size(x.shape, name)), args, options)


class Observer:
    """Joins what batches of activations say to one range of the tensor; with ``dynamic`` each batch has its own."""

    def __init__(self, args: QuantArgs, options: Options = Options(), name: str = "tensor") -> None:  # noqa: B008
        if args.dynamic or args.strategy != "tensor":
            raise UsageError(
                f"{name}: dynamic scales and those of parts of a batch are taken from each batch; what is observed "
                "over many is one range, strategy 'tensor'"
            )
        self._args, self._options, self._name = args, options, name
        self._range: Range | None = None

    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Sees ``x`` ``[…, K]``. mask ``[…]``: true for tokens that count; padding must not set a range."""
        seen = x if mask is None else x[mask]
        if not seen.numel():
            return
        low, high = observe(seen.reshape(1, -1), self._args, self._options, self._name)
        if self._range is None:
            self._range = low, high
        elif self._args.observer == "minmax":
            self._range = torch.minimum(self._range[0], low), torch.maximum(self._range[1], high)
        else:
            share = self._options.momentum
            self._range = self._range[0].lerp(low, share), self._range[1].lerp(high, share)

    def range(self) -> Range:
        """Raises UsageError if nothing was seen."""
        if self._range is None:
            raise UsageError(f"{self._name}: no activations were observed: calibrate with at least one token")
        return self._range
