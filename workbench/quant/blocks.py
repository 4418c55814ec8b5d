"""Block formats: small floats of which 16 or 32 neighbours share a scale. MXFP4, MXFP8 (OCP MX 1.0) and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.formats import E2M1, E4M3, E5M2, E8M0, FloatFormat, decode, encode
from workbench.quant.scales import e4m3_scale, power_scale, tensor_scale


@dataclass(frozen=True, slots=True)
class BlockFormat:
    name: str
    element: FloatFormat
    size: int
    """Numbers that share a scale."""
    scale: FloatFormat

    @property
    def bits(self) -> float:
        """Of one number with its share of the scale."""
        return self.element.bits + self.scale.bits / self.size

    @property
    def under_tensor_scale(self) -> bool:
        """Whether the scales stand under one of the whole tensor."""
        return self.scale is E4M3


MXFP4 = BlockFormat("mxfp4", E2M1, 32, E8M0)
MXFP8 = BlockFormat("mxfp8", E4M3, 32, E8M0)
MXFP8_E5M2 = BlockFormat("mxfp8_e5m2", E5M2, 32, E8M0)
NVFP4 = BlockFormat("nvfp4", E2M1, 16, E4M3)
BLOCK_FORMATS = {f.name: f for f in (MXFP4, MXFP8, MXFP8_E5M2, NVFP4)}


class Blocks(NamedTuple):
    """A tensor ``[…, K]`` in a block format."""

    format: BlockFormat
    codes: Tensor
    """``[…, K]`` uint8, one code a byte"""
    scales: Tensor
    """``[…, K / size]`` uint8, codes of ``format.scale``"""
    tensor_scale: Tensor | None
    """float32 without dimensions, of NVFP4; it multiplies"""


def to_blocks(
    x: Tensor,
    format: BlockFormat,
    scale_mode: str = "floor",
    rounding: str = "nearest",
    tensor_wide: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Blocks:
    """Rounds ``x`` ``[…, K]`` to a block format.

    Args:
        scale_mode: of E8M0, one of `scales.POWER_MODES`; of E4M3 ``floor`` means to the nearest, ``ceil`` up.
        rounding: of the numbers, one of `formats.ROUNDINGS`.
        tensor_wide: NVFP4's scale of the whole tensor, where several tensors share one (query, key and value).

    Raises:
        UsageError: K is no whole number of blocks. ValueError: infinities or NaN.
    """
    if x.shape[-1] % format.size:
        raise UsageError(f"{format.name}: rows of {x.shape[-1]} are no whole blocks of {format.size}")
    if not bool(x.isfinite().all()):
        raise ValueError(f"{format.name} holds finite numbers only and there are infinities or NaN")
    grouped = x.double().unflatten(-1, (-1, format.size))
    largest = grouped.abs().amax(-1)
    if format.under_tensor_scale:
        above = tensor_scale(largest, format.element) if tensor_wide is None else tensor_wide
        kept = e4m3_scale(largest, format.element, above, "up" if scale_mode == "ceil" else "nearest")
        effective = kept * above
    else:
        above, effective = None, power_scale(largest, format.element, scale_mode)
        kept = effective
    codes = encode(grouped / effective.double().unsqueeze(-1), format.element, rounding, generator=generator)
    return Blocks(format, codes.flatten(-2).to(torch.uint8), encode(kept, format.scale).to(torch.uint8), above)


def from_blocks(blocks: Blocks) -> Tensor:
    """The numbers, float32 ``[…, K]``: element · (scale · the tensor's scale)."""
    scale = decode(blocks.scales, blocks.format.scale)
    if blocks.tensor_scale is not None:
        scale = scale * blocks.tensor_scale
    values = decode(blocks.codes, blocks.format.element).unflatten(-1, (-1, blocks.format.size))
    return (values * scale.unsqueeze(-1)).flatten(-2)
