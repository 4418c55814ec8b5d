"""The matrix product of a step: ``x · weightᵀ + bias``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import kernels
from kernels.cpu import linear as cpu_linear
from kernels.cpu import native
from kernels.cpu.build import cannot_run
from kernels.cpu.panels import Panels, in_panels
from kernels.reference.int4_tiles import Int4Tiles, tiles_of
from kernels.reference.weights import Weight, float_weight, stack
from kernels.triton import launch

PACKED_FOR_ROWS = 32
"""The batch that packed weights are laid out for. Other batches run as fast within the noise, from 1 row to 512."""
Matrix = Weight | Panels | Int4Tiles


def laid_out(weight: Matrix | torch.Tensor) -> Matrix:
    """A matrix as those who multiply with it here read it: in panels for our own kernels on a CPU, 4-bit numbers in
    tiles on a GPU, else as it is."""
    made = float_weight(weight) if isinstance(weight, torch.Tensor) else weight
    if isinstance(made, Int4Tiles):
        return made
    if launch.on_gpu(made.data.device):
        return tiles_of(made) if isinstance(made, Weight) and made.format == "uint4" else made
    return made if made.data.device.type != "cpu" or cannot_run() else in_panels(made)


class Linear:
    """Weights ``[out, in]`` that stand one under the other, bias ``[out]`` or None.

    On a CPU our own kernels multiply. Where they cannot be built, float32 weights are laid out once as oneDNN wants
    them: MKL, which plain ``F.linear`` calls, arranges them anew in each call.
    """

    def __init__(
        self,
        weights: Sequence[Matrix | torch.Tensor],
        bias: torch.Tensor | None = None,
        activation_bits: int = 16,
    ) -> None:
        """``activation_bits``: what activations are rounded to where a weight is of whole numbers."""
        parts = [laid_out(part) for part in _stacked(weights)]
        self.parts = parts
        """One matrix, or several where a file stores them in different formats."""
        self.bias = bias
        self.activation_bits = activation_bits
        self._packed = _packed(self.parts[0]) if len(self.parts) == 1 else None
        if self._packed is not None:
            self.parts = []
        self.num_bytes = sum(part.num_bytes for part in parts) + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return product
        if len(self.parts) == 1:
            return _product(x, self.parts[0], self.bias, self.activation_bits)
        biases = [None] * len(self.parts) if self.bias is None else self.bias.split([p.shape[0] for p in self.parts])
        if not native.suits(x):
            pairs = zip(self.parts, biases, strict=True)
            return torch.cat([_product(x, part, bias, self.activation_bits) for part, bias in pairs], 1)
        result = native.empty("linear", (len(x), sum(part.shape[0] for part in self.parts)))
        column = 0
        for part, bias in zip(self.parts, biases, strict=True):
            assert isinstance(part, Panels)
            cpu_linear.linear_into(result[:, column : column + part.shape[0]], x, part, bias, self.activation_bits)
            column += part.shape[0]
        return result


def embed(matrix: Matrix, token_ids: torch.Tensor) -> torch.Tensor:
    """The rows of ``token_ids`` ``[rows]``: ``[rows, in]``."""
    if isinstance(matrix, Panels):
        return cpu_linear.embedding(matrix, token_ids)
    assert isinstance(matrix, Weight), "an embedding is not kept in tiles"
    return kernels.embedding(matrix, token_ids)


def _product(x: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None, activation_bits: int) -> torch.Tensor:
    if isinstance(matrix, Panels):
        return cpu_linear.linear(x, matrix, bias, activation_bits)
    if isinstance(matrix, Int4Tiles):
        return kernels.w4a16_linear(x, matrix, bias)
    return kernels.linear(x, matrix, bias, activation_bits)


def _stacked(weights: Sequence[Matrix | torch.Tensor]) -> Sequence[Matrix | torch.Tensor]:
    """One matrix with the rows of all, where they are of one kind."""
    if len(weights) == 1:
        return weights
    parts = [float_weight(w) if isinstance(w, torch.Tensor) else w for w in weights]
    one = stack([part for part in parts if isinstance(part, Weight)])
    return parts if one is None else [one]


def _packed(weight: Matrix) -> torch.Tensor | None:
    """A weight in oneDNN's own layout, or None where our kernels serve or this torch has no such operator."""
    if weight.data.device.type != "cpu" or weight.format != "float32" or not torch.backends.mkldnn.is_available():
        return None
    if not cannot_run():
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.data, PACKED_FOR_ROWS)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return packed
