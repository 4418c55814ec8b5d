"""What an algorithm must know of a matrix's inputs: how its channels go together, and how large each is.

The error that rounding a weight by Δ makes in the output, summed over all tokens, is tr(Δ · Σxxᵀ · Δᵀ): one matrix
``[K, K]`` says it for any Δ, so no activations need be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class InputStats:
    """Sums over the inputs ``[tokens, K]`` of one matrix, or of several that read the same inputs."""

    def __init__(self, channels: int) -> None:
        self.gram = torch.zeros(channels, channels)
        """Σxxᵀ, ``[K, K]`` float32"""
        self._magnitudes = torch.zeros(channels, dtype=torch.float64)
        self.tokens = 0

    def add(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Counts the inputs ``x`` ``[…, K]``. mask ``[…]``: true for tokens that count; padding does not.

        Raises ValueError for infinities and NaN.
        """
        seen = (x.reshape(-1, x.shape[-1]) if mask is None else x[mask]).float()
        if not bool(seen.isfinite().all()):
            raise ValueError("calibration met infinities or NaN: run the model in bfloat16 or float32")
        self.gram.addmm_(seen.T, seen)
        self._magnitudes += seen.abs().sum(0, dtype=torch.float64)
        self.tokens += len(seen)

    @property
    def hessian(self) -> Tensor:
        """2/n · Σxxᵀ: of the mean squared error of each output, float64 (GPTQ)."""
        return self.gram.double() * (2 / max(self.tokens, 1))

    @property
    def mean_magnitude(self) -> Tensor:
        """Mean |x| of each channel, float32 (AWQ)."""
        return (self._magnitudes / max(self.tokens, 1)).float()

    def error(self, differences: Sequence[Tensor]) -> float:
        """Squared error of the outputs, summed over all tokens, of weights that differ by ``[N, K]`` each."""
        return sum(float((d.mm(self.gram) * d).sum(dtype=torch.float64)) for d in differences)
