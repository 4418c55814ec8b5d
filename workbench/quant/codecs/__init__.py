"""Quantized weights as checkpoints keep them: one module a format, each to and from `QuantizedWeight`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.quant.codecs.awq import Awq
from workbench.quant.codecs.compressed_tensors import CompressedTensors
from workbench.quant.codecs.gptq import Gptq
from workbench.quant.codecs.interface import Codec

__all__ = ["CODECS", "Awq", "Codec", "CompressedTensors", "Gptq", "codec_of"]

CODECS: dict[str, type[CompressedTensors] | type[Gptq] | type[Awq]] = {
    codec.METHOD: codec for codec in (CompressedTensors, Gptq, Awq)
}
"""By ``quant_method``."""


def codec_of(config: Mapping[str, Any]) -> Codec:
    """The format that a ``quantization_config`` speaks of. Raises UsageError for one that is not read."""
    method = config.get("quant_method", config.get("method"))
    if method not in CODECS:
        raise UsageError(f"quant_method={shown(method)} is not supported (supported: {', '.join(CODECS)})")
    return CODECS[method].from_config(config)
