"""Rotary position embeddings: the angles, computed once for every position.

Pair ``i`` of a head's channels turns by ``position × base^(-2i / head_dim)``. The two channels of a pair lie half a
head apart (``x1 = x[: d/2]``, ``x2 = x[d/2 :]``), so ``out1 = x1·cos − x2·sin`` and ``out2 = x2·cos + x1·sin``.
Sources: RoFormer (arXiv 2104.09864); the stretching of Llama 3.1 as published with its weights.
"""

from __future__ import annotations

import math

import torch

from workbench.errors import UsageError
from workbench.model.architecture import RopeScaling
from workbench.model.config import ModelConfig


def inverse_frequencies(config: ModelConfig, device: torch.device | str = "cpu") -> torch.Tensor:
    """Radians per position of each channel pair: float32 ``[head_dim // 2]``. Raises UsageError for unknown scaling."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponent)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    raise UsageError(f"rope scaling {scaling.kind!r} is not supported; choose from default, linear, llama3")


def rope_table(
    config: ModelConfig, max_len: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions ``0 … max_len - 1``: two float32 tensors ``[max_len, head_dim // 2]``."""
    positions = torch.arange(max_len, dtype=torch.float32, device=device)
    angles = positions[:, None] * inverse_frequencies(config, device)
    return angles.cos(), angles.sin()


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow turns are divided by ``factor``, fast ones kept, those between blended by turns in the old context."""
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
