"""Softmax along the last dimension."""

from __future__ import annotations

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    """``e^(x − largest) / Σ e^(x − largest)`` over the last dimension of x ``[…, n]``, in x's dtype.

    A row of −inf alone, from which nothing may be chosen, gives zeros. A row with a NaN or +inf gives NaN.
    """
    return x.softmax(-1).masked_fill((x == float("-inf")).all(-1, keepdim=True), 0.0)
