"""Rotary position embeddings: the angles, computed once for every position.

Pair ``i`` of a head's rotated channels (all of them but for latent attention) turns by ``position × base^(-2i / d)``.
The two channels of a pair lie half a head apart (``x1 = x[: d/2]``, ``x2 = x[d/2 :]``) or, where a model says so, side
by side; ``out1 = x1·cos − x2·sin`` and ``out2 = x2·cos + x1·sin``.
Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), the stretching of Llama 3.1 as published with the model.
"""

from __future__ import annotations

import math

import torch

from workbench.errors import UsageError
from workbench.model.architecture import RopeScaling
from workbench.model.config import ModelConfig


def inverse_frequencies(config: ModelConfig, device: torch.device | str = "cpu") -> torch.Tensor:
    """Radians per position of each pair of channels: float32 ``[rotary_dim // 2]``.

    Raises UsageError for a scaling that is not known.
    """
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=device) / config.rotary_dim
    frequencies = 1.0 / (config.rope_theta**exponent)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, config)
    raise UsageError(f"rope scaling {scaling.kind!r} is not supported; choose from default, linear, llama3, yarn")


def rope_table(
    config: ModelConfig, max_len: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions ``0 … max_len - 1``: two float32 tensors ``[max_len, rotary_dim // 2]``."""
    positions = torch.arange(max_len, dtype=torch.float32, device=device)
    angles = positions[:, None] * inverse_frequencies(config, device)
    amplitude = 1.0 if config.rope_scaling is None else config.rope_scaling.amplitude
    return angles.cos() * amplitude, angles.sin() * amplitude


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow turns are divided by ``factor``, fast ones kept, those between blended by turns in the old context."""
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn(frequencies: torch.Tensor, scaling: RopeScaling, config: ModelConfig) -> torch.Tensor:
    """As Llama 3.1's, but blended by a pair's number, between those that turn ``beta_fast`` and ``beta_slow`` times."""

    def pair(turns: float) -> float:
        """The number of the pair, not a whole one, that turns so often in the old context."""
        longest = scaling.original_max_position_embeddings / (2 * math.pi * turns)
        return config.rotary_dim * math.log(longest) / (2 * math.log(config.rope_theta))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.rotary_dim - 1)
    last += 0.001 if first == last else 0.0
    numbers = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
    stretched = ((numbers - first) / (last - first)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * stretched + frequencies * (1 - stretched)
