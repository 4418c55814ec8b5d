"""What a checkpoint format of quantized weights is: a way to and from the canonical form, and what its config says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from workbench.checks import as_whole, shown
from workbench.errors import UsageError, WorkbenchError
from workbench.quant.args import QuantArgs
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight

BITS = (4, 8)


class WeightCodec(Protocol):
    """How one weight is kept."""

    ENDS: ClassVar[tuple[str, ...]]
    """Of the names of a weight's tensors, after the layer's name and a dot. The first is there for every weight."""

    @property
    def args(self) -> QuantArgs: ...

    def require_fit(self, rows: int, columns: int, name: str) -> None:
        """Raises UsageError, which names the layer, for a shape that the format does not hold."""
        ...

    def encode(self, weight: QuantizedWeight, name: str = "weight") -> dict[str, Tensor]:
        """The tensors that stand for a weight, by the ends of their names. Raises UsageError for one that the format
        does not hold: what is written is what comes back."""
        ...

    def decode(self, tensors: Mapping[str, Tensor], name: str = "weight") -> QuantizedWeight:
        """A weight out of its tensors. Raises WorkbenchError, which names it, where one is missing or does not fit."""
        ...


class Codec(WeightCodec, Protocol):
    """One checkpoint format under one configuration."""

    METHOD: ClassVar[str]
    """``quant_method`` of the configuration."""

    def config(self) -> dict[str, Any]:
        """``quantization_config`` of a model whose every linear layer but the head is quantized so."""
        ...


def require_integers(args: QuantArgs, what: str, bits: Sequence[int] = BITS) -> None:
    """Raises UsageError for numbers or granularities that packed words do not hold."""
    if args.type != "int" or args.bits not in bits:
        told = " or ".join(map(str, bits))
        raise UsageError(f"{what} holds whole numbers of {told} bits, not {args.type} of {args.bits}")
    if args.strategy not in ("channel", "group"):
        raise UsageError(f"{what} holds scales of channels or groups, not of a {args.strategy}")


def zeros_of(weight: QuantizedWeight, args: QuantArgs, name: str) -> Tensor:
    """Zero points ``[N, groups]`` int16, all 0 where there are none. Raises UsageError if a symmetric format would lose
    them, or for numbers of other bits."""
    if weight.args.bits != args.bits or weight.args.type != args.type:
        raise UsageError(f"{name} is of {weight.args.bits} bits and is to be written as one of {args.bits}")
    if weight.params.zero is None:
        return torch.zeros(weight.params.scale.shape, dtype=torch.int16)
    if args.symmetric and bool(weight.params.zero.any()):
        raise UsageError(f"{name} has zero points, which a symmetric format does not keep: write an asymmetric one")
    return weight.params.zero.short()


def of_zeros(q: Tensor, scale: Tensor, zero: Tensor, args: QuantArgs) -> QuantizedWeight:
    """A weight of a format that always stores zero points. Some that are said to be symmetric are not."""
    if not args.symmetric:
        return QuantizedWeight(q, QParams(scale, zero), args)
    if bool(zero.any()):
        return QuantizedWeight(q, QParams(scale, zero), replace(args, symmetric=False))
    return QuantizedWeight(q, QParams(scale, None), args)


def half_scales(weight: QuantizedWeight, name: str) -> Tensor:
    """Scales ``[N, groups]`` in float16. Raises UsageError where that would change them."""
    kept = weight.params.scale.half()
    if not torch.equal(kept.float(), weight.params.scale):
        raise UsageError(f"{name}: its scales need more than float16's digits, which is what the format keeps: "
                         "quantize with scale='fp16'")  # fmt: skip
    return kept


def require_tensors(tensors: Mapping[str, Tensor], ends: Sequence[str], name: str) -> list[Tensor]:
    """The tensors of these ends. Raises WorkbenchError for missing ones, for those of another kind (scales are floats,
    all others whole numbers) and for scales that are not finite."""
    if absent := [end for end in ends if end not in tensors]:
        raise WorkbenchError(f"{name} lacks {', '.join(absent)}: fetch the checkpoint again")
    for end in ends:
        if tensors[end].is_floating_point() != end.endswith(("scale", "scales")):
            kind = str(tensors[end].dtype).removeprefix("torch.")
            raise WorkbenchError(f"{name}.{end} is stored as {kind}: fetch the checkpoint again")
        if tensors[end].is_floating_point() and not bool(tensors[end].isfinite().all()):
            raise WorkbenchError(f"{name}.{end} holds infinities or NaN: fetch the checkpoint again")
    return [tensors[end] for end in ends]


def require_matrix(words: Tensor, name: str) -> None:
    """Raises WorkbenchError for words that are no matrix."""
    if words.dim() != 2:
        raise WorkbenchError(f"{name} is {list(words.shape)} where a matrix was expected: fetch the checkpoint again")


def require_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Raises WorkbenchError for the first tensor of another shape."""
    for end, shape in shapes.items():
        if end in tensors and tuple(tensors[end].shape) != shape:
            raise WorkbenchError(
                f"{name}.{end} is {list(tensors[end].shape)} where {list(shape)} was expected: the configuration "
                "speaks of other bits or another group size, or the file is damaged"
            )


def require_groups(group_of: Tensor, groups: int, columns: int, name: str) -> None:
    """Raises WorkbenchError for a group that there is none of."""
    if (
        group_of.is_floating_point()
        or tuple(group_of.shape) != (columns,)
        or bool(((group_of < 0) | (group_of >= groups)).any())
    ):
        raise WorkbenchError(f"{name}: its g_idx must give each of {columns} columns a group below {groups}")


def choice(config: Mapping[str, Any], key: str, choices: Sequence[Any], default: Any = None) -> Any:
    """A value of a configuration. Raises UsageError for one that is not supported."""
    value = config.get(key, default)
    if value not in choices or isinstance(value, bool) != isinstance(choices[choices.index(value)], bool):
        supported = ", ".join(map(str, choices))
        raise UsageError(f"quantization_config: {key}={shown(value)} is not supported (supported: {supported})")
    return value


def group_args(bits: int, config: Mapping[str, Any], symmetric: bool, key: str = "group_size") -> QuantArgs:
    """Whole numbers with float16 scales, in groups as a configuration says; −1 is one scale a row."""
    size = as_whole(config.get(key, 128))
    if size is None or (size < 1 and size != -1):
        raise UsageError(f"quantization_config: {key}={shown(config.get(key))} must be −1 or at least 1")
    return QuantArgs(bits, group_size=128, symmetric=symmetric, scale="fp16").with_group(size)
