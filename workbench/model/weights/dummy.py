"""Random weights of the right shapes: for timing a model whose real weights are not at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from workbench.model.config import ModelConfig
from workbench.model.weights.expected import expected_tensors, stays_float32

_CHUNK = 1 << 24
_BIAS_STD = 0.02


def dummy_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every tensor of `expected_tensors`, one at a time, already in its final dtype and place.

    Matrices are normal with deviation 1 / sqrt(columns), so a normalised input gives outputs of about unit size
    whatever the width; norms are 1; biases are small. A tensor depends on ``seed`` and its name only (and on the
    kind of device, whose random numbers differ); another dtype gives the same numbers, rounded. Raises UsageError for
    a model that the decoder cannot run.
    """
    for name, shape in expected_tensors(config).items():
        if name.endswith("norm.weight"):
            yield name, torch.ones(shape, dtype=dtype, device=device)
            continue
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest, "little") >> 1)
        std = shape[1] ** -0.5 if len(shape) == 2 else _BIAS_STD
        kept = torch.float32 if stays_float32(name) else dtype
        tensor = torch.empty(shape, dtype=kept, device=device)
        # Drawn in float32 a piece at a time: a large table never exists twice.
        for piece in tensor.view(-1).split(_CHUNK):
            drawn = torch.empty(piece.shape, dtype=torch.float32, device=device)
            piece.copy_(drawn.normal_(0.0, std, generator=generator))
        yield name, tensor
