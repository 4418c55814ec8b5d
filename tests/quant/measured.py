"""What these tests measure with."""

from __future__ import annotations

import torch


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def snr_db(x: torch.Tensor, y: torch.Tensor) -> float:
    """Signal to noise in decibels; said here once more, apart from the code that is tested."""
    return float(10 * torch.log10(x.double().square().sum() / (x - y).double().square().sum()))
