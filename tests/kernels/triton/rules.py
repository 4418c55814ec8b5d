"""Inputs for kernels, and what their results may differ by."""

from __future__ import annotations

import torch


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def agrees(found: torch.Tensor, same: torch.Tensor, wide: torch.Tensor) -> None:
    """FlashAttention's rule: at most twice as far from the truth as the definition in the same precision is, and an
    allowance as large as rounding by itself; at its worst and on the average.

    same: the definition's result in the dtype of ``found``; wide: the true one, in float64.
    """
    assert found.dtype is same.dtype and found.shape == same.shape
    found, same, wide = found.cpu(), same.cpu(), wide.cpu()
    if not found.numel():
        return
    error, theirs = (one.double() - wide for one in (found, same))
    allowance = 2 * ((same + 0.3 - 0.3) - same).abs().max().double()
    assert error.abs().max() <= 2 * theirs.abs().max() + allowance
    assert rms(error) <= 1.5 * rms(theirs) + torch.finfo(found.dtype).eps * rms(wide)


def rms(x: torch.Tensor) -> torch.Tensor:
    return x.double().square().mean().sqrt()


def amid_nan(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random rows whose surroundings are not a number: in front, behind and between."""
    storage = torch.full((shape[0] + 2, *shape[1:-1], shape[-1] + 7), float("nan"), dtype=dtype)
    view = storage[1:-1, ..., 3 : 3 + shape[-1]]
    return view.copy_(drawn(*shape, seed=seed, dtype=dtype))
