"""What quantizing a tensor means, in one frozen object: how many bits, which numbers share a scale, how it is kept.

Every granularity is a block size: a tensor's scale covers all of it, a channel's one row of a weight, a token's one row
of activations, a group some neighbours in a row, a block a rectangle. `core` knows only the block size.

Names follow compressed-tensors' ``QuantizationArgs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.errors import UsageError
from workbench.quant.formats import E2M1, E4M3, FloatFormat
from workbench.quant.scales import BLOCK_SCALES, FLOAT_SCALES, POWER_MODES

STRATEGIES = ("tensor", "channel", "token", "group", "block")
ELEMENTS = {4: E2M1, 8: E4M3}
"""The floats there are, by bits."""
USUAL_GROUPS = (128, 64, 32, 16)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class QuantArgs:
    """How one tensor is quantized. Raises UsageError for what does not go together."""

    bits: int = 4
    type: str = "int"
    """``int`` or ``float``."""
    strategy: str = "group"
    group_size: int | None = None
    """Of ``group``: neighbours in a row that share a scale."""
    block_structure: tuple[int, int] | None = None
    """Of ``block``: rows and columns; blocks at the edges may be smaller."""
    symmetric: bool = True
    """Without zero points. Asymmetric means a whole-number zero point and a range that holds 0."""
    symmetric_range: str = "full"
    """Of whole numbers: ``full`` divides the largest magnitude by half the range (7.5 of int4, as compressed-tensors;
    the largest number may be clipped by half a step), ``narrow`` by its positive end (7, as SmoothQuant and AWQ)."""
    scale: str = "fp32"
    """How scales are kept: fp32, fp16, bf16, fp16_7_digits (float16 with fewer digits), e8m0 (a power of two) or
    fp8_e4m3 under one scale of the whole tensor."""
    scale_mode: str = "floor"
    """Rounding of e8m0 scales, one of `scales.POWER_MODES`."""
    dynamic: bool = False
    """Ranges are taken from each tensor as it comes; otherwise from calibration."""
    observer: str = "minmax"
    """Where ranges come from: a name in `observers.OBSERVERS`."""

    def __post_init__(self) -> None:
        def refuse(value: Any, why: str) -> None:
            raise UsageError(f"QuantArgs: {value!r} {why}")

        if self.type not in ("int", "float"):
            refuse(self.type, "is no type of number; choose int or float")
        if self.type == "int" and not 2 <= self.bits <= 8:
            refuse(self.bits, "bits of a whole number: choose 2 to 8")
        if self.type == "float" and self.bits not in ELEMENTS:
            refuse(self.bits, f"bits of a float: choose {' or '.join(map(str, ELEMENTS))}")
        if self.strategy not in STRATEGIES:
            refuse(self.strategy, f"is no strategy; choose from {', '.join(STRATEGIES)}")
        if (self.strategy == "group") != (self.group_size is not None):
            refuse(self.group_size, "as group_size: give one with strategy 'group', and only then")
        if self.group_size is not None and self.group_size < 1:
            refuse(self.group_size, "as group_size: it must be at least 1; for one scale a row use strategy 'channel'")
        if (self.strategy == "block") != (self.block_structure is not None):
            refuse(self.block_structure, "as block_structure: give one with strategy 'block', and only then")
        if self.block_structure is not None and min(self.block_structure) < 1:
            refuse(self.block_structure, "as block_structure: rows and columns must be at least 1")
        if self.type == "float" and not self.symmetric:
            refuse("asymmetric", "floats: they have no zero point")
        if self.symmetric_range not in ("full", "narrow"):
            refuse(self.symmetric_range, "as symmetric_range; choose full or narrow")
        if self.scale not in (*FLOAT_SCALES, *BLOCK_SCALES):
            refuse(self.scale, f"as scale; choose from {', '.join((*FLOAT_SCALES, *BLOCK_SCALES))}")
        if self.scale in BLOCK_SCALES and self.type == "int":
            refuse(self.scale, "as scale of whole numbers: it goes with floats of a block")
        if self.scale_mode not in POWER_MODES:
            refuse(self.scale_mode, f"as scale_mode; choose from {', '.join(POWER_MODES)}")

    @property
    def element(self) -> FloatFormat | None:
        """The float that numbers become; None for whole numbers."""
        return ELEMENTS[self.bits] if self.type == "float" else None

    @property
    def max(self) -> float:
        """The largest number before scaling."""
        return self.element.max if self.element else float(2 ** (self.bits - 1) - 1)

    @property
    def min(self) -> float:
        if self.element:
            return -self.element.max
        return -self.max - (not (self.symmetric and self.symmetric_range == "narrow"))

    def block_size(self, shape: Sequence[int], name: str = "tensor") -> tuple[int, int]:
        """Rows and columns that share a scale in a tensor ``[…, K]``, seen as rows of K.

        Raises UsageError that names the tensor where groups do not divide K.
        """
        rows, columns = _rows(shape), shape[-1]
        if self.strategy == "tensor":
            return rows, columns
        if self.strategy == "block":
            assert self.block_structure is not None
            return min(self.block_structure[0], rows), min(self.block_structure[1], columns)
        if self.strategy == "group":
            assert self.group_size is not None
            if columns % self.group_size:
                raise UsageError(f"{name}: {_no_whole_groups(columns, self.group_size)}")
            return 1, self.group_size
        return 1, columns

    def num_blocks(self, shape: Sequence[int], name: str = "tensor") -> tuple[int, int]:
        """Scales down and across."""
        height, width = self.block_size(shape, name)
        return -(-_rows(shape) // height), -(-shape[-1] // width)

    def bits_per_number(self, shape: Sequence[int], name: str = "tensor") -> float:
        """With the share of scales and zero points."""
        scale = {**FLOAT_SCALES, **BLOCK_SCALES}[self.scale].bits + (0 if self.symmetric else self.bits)
        down, across = self.num_blocks(shape, name)
        return self.bits + down * across * scale / (_rows(shape) * shape[-1])

    def with_group(self, group_size: int) -> QuantArgs:
        """The same with other groups; −1 is one scale a row."""
        if group_size == -1:
            return replace(self, strategy="channel", group_size=None)
        return replace(self, strategy="group", group_size=group_size)


def require_fit(args: QuantArgs, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises one UsageError that names the layers ``args`` cannot be used on, before any work is done."""
    size = args.group_size
    if size is None:
        return
    wrong = [name for name, shape in shapes.items() if shape[-1] % size]
    if wrong:
        rest = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        columns = sorted({shapes[name][-1] for name in wrong})
        told = "; ".join(_no_whole_groups(k, size) for k in columns)
        raise UsageError(f"{', '.join(wrong[:_SHOWN])}{rest}: {told}")


def _no_whole_groups(columns: int, size: int) -> str:
    fitting = [str(g) for g in USUAL_GROUPS if columns % g == 0]
    choose = f"groups of {' or '.join(fitting)} do" if fitting else "no usual group does"
    return f"groups of {size} do not divide its {columns} inputs; {choose}, and −1 is one scale a row"


def _rows(shape: Sequence[int]) -> int:
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return rows
