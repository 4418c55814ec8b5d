"""Block formats as tables: what rounding a block's scale does to its numbers, and what formats of 4 bits lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workbench.lab.table import Table
from workbench.quant.args import QuantArgs
from workbench.quant.blocks import MXFP4, NVFP4, from_blocks, to_blocks
from workbench.quant.core import fake_quant
from workbench.quant.formats import decode
from workbench.quant.result import snr_db
from workbench.quant.scales import POWER_MODES

INT4_64 = QuantArgs(4, group_size=64, scale="fp16")
"""Whole numbers with a 16-bit scale for each 64."""


def scale_modes_table(pairs: Sequence[tuple[float, float]]) -> Table:
    """A row for each way to round MXFP4's scale: the scale, and what becomes of a block's largest number and of a small
    one beside it. ``pairs``: (largest, small) of each block."""
    blocks = torch.zeros(len(pairs), MXFP4.size)
    blocks[:, :2] = torch.tensor(pairs)
    rows = []
    for mode in POWER_MODES:
        made = to_blocks(blocks, MXFP4, mode)
        scales, back = decode(made.scales, MXFP4.scale).flatten().tolist(), from_blocks(made)[:, :2].tolist()
        rows.append([mode, *(f"scale {s:g}: {a:g} and {b:g}" for s, (a, b) in zip(scales, back, strict=True))])
    return Table(["scale rounded", *(f"{largest:g} and {small:g}" for largest, small in pairs)], rows, "MXFP4")


def four_bits(x: Tensor) -> dict[str, float]:
    """Signal to noise in decibels of ``x`` ``[…, K]`` in each format of 4 bits with scales of groups."""
    found = {f"MXFP4, {mode}": from_blocks(to_blocks(x, MXFP4, mode)) for mode in POWER_MODES}
    found |= {"NVFP4": from_blocks(to_blocks(x, NVFP4)), "INT4 by 64": fake_quant(x, INT4_64)}
    return {name: snr_db(x, back) for name, back in found.items()}


def four_bits_table(found: Mapping[str, Mapping[str, float]], caption: str = "") -> Table:
    """``found``: what `four_bits` gave for each tensor. Bits of a number are with its share of the scales."""
    bits = dict.fromkeys((f"MXFP4, {mode}" for mode in POWER_MODES), MXFP4.bits)
    bits |= {"NVFP4": NVFP4.bits, "INT4 by 64": INT4_64.bits_per_number((1, 64))}
    rows = [[name, f"{bits[name]:g}", *(f"{one[name]:.1f}" for one in found.values())] for name in bits]
    return Table(["format", "bits each", *(f"dB, {name}" for name in found)], rows, caption)
