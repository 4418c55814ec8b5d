"""From a checkpoint to a decoder's weights in the format that was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from workbench.attention.interface import AttentionBackend
from workbench.config import EngineConfig
from workbench.model.config import ModelConfig
from workbench.model.decoder import Decoder, Weights
from workbench.model.quantize import SCHEMES, quantize, require_scheme
from workbench.model.weights import load_weights
from workbench.model.weights.fingerprint import weights_fingerprint


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
        return Decoder(self.model_config, self.weights, attention, max_model_len, bits)


def load_model(
    config: EngineConfig, model_config: ModelConfig, source: Path | str, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    """Loads weights as ``config.quantization`` says; ``fast`` is the affair of `workbench.fast`.

    Raises UsageError for a format that cannot be had here.
    """
    wanted = {"auto": "none"}.get(config.quantization, config.quantization)
    is_gguf = isinstance(source, Path) and source.suffix.lower() == ".gguf"
    if wanted != "none":
        require_scheme(wanted, is_gguf, config.dtype, device)
    why = "no checkpoint that this version reads says otherwise" if config.quantization == "auto" else "asked for"
    return load_scheme(config, model_config, source, dtype, device, wanted, why)


def load_scheme(
    config: EngineConfig,
    model_config: ModelConfig,
    source: Path | str,
    dtype: torch.dtype,
    device: torch.device,
    scheme: str,
    why: str,
) -> LoadedModel:
    """Loads weights in one scheme; ``none``: as floats."""
    path = source if isinstance(source, Path) else None
    weights: Weights = load_weights(
        model_config, path, config.load_format, dtype, device, config.seed, packed=scheme == "gguf"
    )
    formats = {} if scheme == "none" else quantize(weights, scheme)
    return LoadedModel(model_config, weights, Chosen(scheme, why, formats), weights_fingerprint(weights))
