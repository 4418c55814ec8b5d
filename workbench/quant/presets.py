"""Schemes by the names that ``quantization`` and ``quantize --scheme`` have for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.errors import UsageError
from workbench.quant.args import QuantArgs

DEFAULT_GROUP = 64
"""128, the usual one, does not divide the 576 inputs of the default model."""


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """What weights become and, where they meet them, activations (None: they stay floats)."""

    weights: QuantArgs
    activations: QuantArgs | None
    meaning: str


_INT4 = QuantArgs(4, group_size=DEFAULT_GROUP, symmetric=False, scale="fp16")
_INT8_ROWS = QuantArgs(8, strategy="channel", symmetric_range="narrow")
_INT8_TOKENS = QuantArgs(8, strategy="token", symmetric_range="narrow", dynamic=True)
_FP8_ROWS = QuantArgs(8, "float", "channel")
_FP8_TOKENS = QuantArgs(8, "float", "token", dynamic=True)
_MXFP4 = QuantArgs(4, "float", "group", 32, scale="e8m0")
_NVFP4 = QuantArgs(4, "float", "group", 16, scale="fp8_e4m3")

PRESETS = {
    "w4a16": QuantScheme(_INT4, None, "4-bit weights with scale and zero point for each 64"),
    "w8a16": QuantScheme(_INT8_ROWS, None, "8-bit weights with a scale a row"),
    "w8a8-int8": QuantScheme(
        _INT8_ROWS, _INT8_TOKENS, "8-bit weights with a scale a row, activations with one a token"
    ),
    "fp8": QuantScheme(_FP8_ROWS, _FP8_TOKENS, "E4M3 weights with a scale a row, activations with one a token"),
    "w4a8": QuantScheme(_INT4, _INT8_TOKENS, "4-bit weights for each 64, 8-bit activations with a scale a token"),
    "mxfp4": QuantScheme(_MXFP4, None, "E2M1 weights with a power of two for each 32"),
    "nvfp4": QuantScheme(_NVFP4, None, "E2M1 weights with an E4M3 scale for each 16 and one of the tensor"),
}


def preset(name: str, group_size: int | None = None, symmetric: bool | None = None) -> QuantScheme:
    """A scheme by name; groups and zero points of whole-number weights may be set, −1 is one scale a row.

    Raises UsageError for a name that is not known and for what a scheme fixes itself.
    """
    if name not in PRESETS:
        raise UsageError(f"scheme {name!r} is not known; choose from {', '.join(PRESETS)}")
    scheme = PRESETS[name]
    weights = scheme.weights
    if weights.type == "float" and (group_size, symmetric) != (None, None):
        raise UsageError(f"scheme {name!r} says itself which weights share a scale: leave group size and symmetry out")
    if group_size is not None:
        weights = weights.with_group(group_size)
    if symmetric is not None:
        weights = replace(weights, symmetric=symmetric)
    return replace(scheme, weights=weights)
