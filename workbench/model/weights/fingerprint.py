"""A fingerprint of loaded weights: do two sets compute the same keys and values?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

import torch

from kernels.reference.weights import Weight

SAMPLED = 16_384
"""Values of a tensor that are looked at, evenly spaced from its first to its last."""


def weights_fingerprint(weights: Mapping[str, torch.Tensor | Weight]) -> str:
    """Hexadecimal digest of names, dtypes, shapes and a sample of every tensor's values.

    Another checkpoint, revision, fine-tune or random seed gives another one. It reads megabytes and not gigabytes, so
    it does not notice a change of single values between those that it samples.
    """
    digest = sha256(b"workbench weights 1")
    for name, tensor in sorted(_tensors(weights), key=lambda pair: pair[0]):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().reshape(-1)
        if flat.numel() > SAMPLED:
            places = torch.linspace(0, flat.numel() - 1, SAMPLED, dtype=torch.float64).long()
            flat = flat[places.to(flat.device)]
        digest.update(flat.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def _tensors(weights: Mapping[str, torch.Tensor | Weight]) -> Iterator[tuple[str, torch.Tensor]]:
    """A packed matrix counts by what it is made of."""
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor):
            yield name, weight
            continue
        yield f"{name} {weight.format} {weight.group}", weight.data
        if weight.scales is not None:
            yield f"{name} scales", weight.scales
        if weight.order is not None:
            yield f"{name} order", weight.order
