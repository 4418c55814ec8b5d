"""A product of two matrices with what is done to it on the way out."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
}
"""``gelu`` by the error function, not its approximation by a tanh."""


def matmul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    """``activation(a · b + bias)``: a ``[m, k]``, b ``[k, n]``, bias ``[n]`` → ``[m, n]`` in a's dtype.

    b and the bias are brought to a's dtype, and so is what stands between the steps. ``activation``: of `ACTIVATIONS`.
    Raises ValueError for another.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"matmul: activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
    product = a @ b.to(a.dtype)
    return ACTIVATIONS[activation](product if bias is None else product + bias.to(a.dtype))
