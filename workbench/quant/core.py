"""Ranges to scales, numbers to codes and back, over one view of all granularities.

A tensor ``[…, K]`` is seen as ``[rows / height, height, K / width, width]``: the numbers of a block lie along
dimensions 1 and 3, and its scale is one number of ``[rows / height, K / width]``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.quant.args import QuantArgs
from workbench.quant.formats import E4M3, round_to
from workbench.quant.scales import FLOAT_SCALES, e4m3_scale, float_scale, power_scale, tensor_scale


class QParams(NamedTuple):
    """What turns codes into numbers: ``(q − zero) · scale``. All ``[blocks down, blocks across]``."""

    scale: Tensor
    """float32, as it is stored"""
    zero: Tensor | None
    """int8, on the signed side: −8 … 7 for int4. None where symmetric."""
    tensor_scale: Tensor | None = None
    """float32 without dimensions: above E4M3 scales"""

    @property
    def step(self) -> Tensor:
        """The distance of neighbouring codes, or for floats what 1.0 stands for."""
        return self.scale if self.tensor_scale is None else self.scale * self.tensor_scale


def blocked(x: Tensor, block: tuple[int, int], fill: float = 0.0) -> Tensor:
    """``[…, K]`` as ``[down, height, across, width]``, edges filled up."""
    rows, (height, width) = x.reshape(-1, x.shape[-1]), block
    rows = F.pad(rows, (0, -rows.shape[1] % width, 0, -rows.shape[0] % height), value=fill)
    return rows.reshape(len(rows) // height, height, -1, width)


def unblocked(view: Tensor, shape: torch.Size) -> Tensor:
    """The way back from `blocked`."""
    down, height, across, width = view.shape
    rows = view.reshape(down * height, across * width)
    return rows[: shape[:-1].numel(), : shape[-1]].reshape(shape)


def qparams(low: Tensor, high: Tensor, args: QuantArgs, tensor_wide: Tensor | None = None) -> QParams:
    """Scales and zero points for blocks whose numbers lie between ``low`` and ``high``.

    ``tensor_wide``: the scale above E4M3 scales, where several tensors share one. Raises ValueError for ranges that are
    not finite and for scales that their format cannot hold.
    """
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise ValueError("a range is not finite: there are infinities or NaN in what was observed")
    low, high = low.float().clamp_max(0), high.float().clamp_min(0)
    if not args.symmetric:
        scale = float_scale((high - low) / (args.max - args.min), FLOAT_SCALES[args.scale])
        zero = (args.min - (low / scale).round()).clamp(args.min, args.max)
        return QParams(scale, zero.to(torch.int8))
    largest = torch.maximum(-low, high)
    if args.scale == "e8m0":
        assert args.element is not None
        return QParams(power_scale(largest, args.element, args.scale_mode), None)
    if args.scale == E4M3.name:
        assert args.element is not None
        above = tensor_scale(largest, args.element) if tensor_wide is None else tensor_wide
        return QParams(e4m3_scale(largest, args.element, above), None, above)
    reach = (args.max - args.min) / 2  # 7.5 of the full int4, 7 of the narrow one, 448 of E4M3
    return QParams(float_scale(largest / reach, FLOAT_SCALES[args.scale]), None)


def to_grid(x: Tensor, step: Tensor, zero: Tensor | None, args: QuantArgs) -> Tensor:
    """Numbers to codes, element by element, with steps and zeros that broadcast: int8, or for floats the float32 number
    of the format. What lies beyond the range becomes its end."""
    if args.element is not None:
        return round_to(x / step, args.element)
    q = (x / step).round_()
    return (q if zero is None else q.add_(zero)).clamp_(args.min, args.max).to(torch.int8)


def from_grid(q: Tensor, step: Tensor, zero: Tensor | None) -> Tensor:
    """Codes to float32 numbers, in the order that every checkpoint format means: the difference, then the product."""
    return (q.float() if zero is None else q.float() - zero) * step


def rounded(view: Tensor, params: QParams, args: QuantArgs) -> Tensor:
    """A `blocked` view as it comes back from its codes."""
    step, zero = _spread(params)
    return from_grid(to_grid(view, step, zero, args), step, zero)


def quantize(x: Tensor, params: QParams, args: QuantArgs, name: str = "tensor") -> Tensor:
    """Codes of ``x`` ``[…, K]``, of its shape (`to_grid`). Raises ValueError for NaN and infinities."""
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name}: there are infinities or NaN, and none can be kept in {args.bits} bits")
    step, zero = _spread(params)
    return unblocked(to_grid(blocked(x.float(), args.block_size(x.shape, name)), step, zero, args), x.shape)


def dequantize(q: Tensor, params: QParams, args: QuantArgs) -> Tensor:
    """float32 numbers of the codes' shape."""
    step, zero = _spread(params)
    return unblocked(from_grid(blocked(q, args.block_size(q.shape)), step, zero), q.shape)


def observed(x: Tensor, args: QuantArgs, name: str = "tensor") -> tuple[Tensor, Tensor]:
    """Least and largest number of each block of ``x``; 0 is always between them."""
    view = blocked(x.float(), args.block_size(x.shape, name))
    return view.amin((1, 3)).clamp_max_(0), view.amax((1, 3)).clamp_min_(0)


def fake_quant(x: Tensor, args: QuantArgs, params: QParams | None = None, name: str = "tensor") -> Tensor:
    """``x`` as it comes back from its codes, float32. Without ``params`` ranges are those of ``x`` itself."""
    if params is None:
        params = qparams(*observed(x, args, name), args)
    return dequantize(quantize(x, params, args, name), params, args)


def _spread(params: QParams) -> tuple[Tensor, Tensor | None]:
    """Steps and zeros as they meet a `blocked` view."""
    zero = params.zero
    return params.step[:, None, :, None], None if zero is None else zero[:, None, :, None]
