"""One layer's weights, taken out of a checkpoint's by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.reference.weights import Weight, unpack
from workbench.model.linear import Linear, Matrix

Weights = dict[str, torch.Tensor | Matrix]


class LayerWeights:
    """The tensors whose names begin alike. What is taken is gone from the checkpoint's, so that a stacked matrix and
    its parts exist together only briefly."""

    def __init__(self, weights: Weights, prefix: str, dtype: torch.dtype, activation_bits: int) -> None:
        """``prefix`` ends in a dot. ``dtype``: of activations. ``activation_bits``: what they are rounded to where they
        meet weights of whole numbers."""
        self._weights, self._prefix = weights, prefix
        self.dtype, self.activation_bits = dtype, activation_bits

    def within(self, name: str) -> LayerWeights:
        """Those whose names go on with ``name``, which ends in a dot."""
        return LayerWeights(self._weights, self._prefix + name, self.dtype, self.activation_bits)

    def vector(self, name: str) -> torch.Tensor | None:
        """A tensor of floats as activations are kept; None where there is none."""
        found = self._weights.pop(self._prefix + name, None)
        return None if found is None else found.to(self.dtype)  # type: ignore[union-attr]

    def floats(self, name: str) -> torch.Tensor:
        """A tensor that must be there, in the dtype it is kept in; a packed matrix is unpacked."""
        found = self._weights.pop(self._prefix + name)
        assert isinstance(found, torch.Tensor | Weight)
        return unpack(found) if isinstance(found, Weight) else found

    def linear(self, *names: str) -> Linear:
        """The product with the matrices of ``names``, one under the other, and their biases."""
        matrices = [self._weights.pop(f"{self._prefix}{name}.weight") for name in names]
        biases = [self.vector(f"{name}.bias") for name in names]
        return Linear(matrices, _joined(biases, matrices, self.dtype), self.activation_bits)


def _joined(
    biases: Sequence[torch.Tensor | None], matrices: Sequence[torch.Tensor | Matrix], dtype: torch.dtype
) -> torch.Tensor | None:
    """The biases of all matrices, 0 for one that has none where others do."""
    there = next((bias for bias in biases if bias is not None), None)
    if there is None:
        return None
    rows = [matrix.shape[0] for matrix in matrices]
    return torch.cat([there.new_zeros(n) if bias is None else bias for n, bias in zip(rows, biases, strict=True)])
