"""From a checkpoint to a decoder's weights in the format that was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.reference.weights import FLOATS
from workbench.attention.interface import AttentionBackend
from workbench.config import EngineConfig
from workbench.model.config import QUANT_METHODS, ModelConfig
from workbench.model.decoder import Decoder
from workbench.model.layer_weights import Weights
from workbench.model.quantize import SCHEMES, quantize
from workbench.model.threads import one_thread
from workbench.model.weights import load_weights
from workbench.model.weights.fingerprint import weights_fingerprint
from workbench.model.weights.quantized import quantized_names


class Checkpoint(NamedTuple):
    """Where weights come from, and what they are loaded for."""

    config: EngineConfig
    model_config: ModelConfig
    source: Path | str
    dtype: torch.dtype
    device: torch.device

    @property
    def is_gguf(self) -> bool:
        return isinstance(self.source, Path) and self.source.suffix.lower() == ".gguf"

    @property
    def stored(self) -> str | None:
        """The scheme that the file's own weights make; None where they are floats."""
        if self.config.load_format == "dummy":
            return None
        return "gguf" if self.is_gguf else self.model_config.quant_method


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which weight format is computed in, and why."""

    name: str
    """A value of ``quantization``, never ``auto`` or ``fast``."""
    why: str
    formats: dict[str, str]
    """Of each matrix, by its Hugging Face name."""


@dataclass(slots=True)
class LoadedModel:
    """Weights for one decoder, which empties them."""

    model_config: ModelConfig
    weights: Weights
    quantization: Chosen
    fingerprint: str

    def decoder(self, attention: AttentionBackend, max_model_len: int) -> Decoder:
        scheme = SCHEMES.get(self.quantization.name)
        bits = 16 if scheme is None else scheme.activation_bits
        with one_thread():
            return Decoder(self.model_config, self.weights, attention, max_model_len, bits)


def load_scheme(checkpoint: Checkpoint, scheme: str, why: str) -> LoadedModel:
    """Loads weights in one scheme; ``none``: as floats."""
    config, model_config, source, dtype, device = checkpoint
    path = source if isinstance(source, Path) else None
    weights: Weights = load_weights(
        model_config, path, config.load_format, dtype, device, config.seed, packed=scheme == checkpoint.stored
    )
    with one_thread():
        formats = {} if scheme == "none" else quantize(weights, scheme)
    if scheme in QUANT_METHODS and path is not None:
        why += _expanded(path, formats)
    return LoadedModel(model_config, weights, Chosen(scheme, why, formats), weights_fingerprint(weights))


def _expanded(folder: Path, formats: dict[str, str]) -> str:
    """In words, which quantized matrices of a checkpoint are computed with as floats; empty if none."""
    names = quantized_names(folder)
    expanded = [name for name in names if formats.get(name) in FLOATS]
    if not expanded:
        return ""
    return (
        f"; {len(expanded)} of {len(names)} matrices are computed with as floats, {expanded[0]} for one: kernels here "
        "take groups of neighbours that 32 divides (no act-order 'group'), of 8 bits without zero points, with scales "
        "that float16 holds"
    )
