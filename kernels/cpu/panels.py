"""Weights laid out as the C++ kernels read them; see `formats.h`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.reference.weights import BLOCK, FLOATS, Weight, numbers

OUTPUTS = 16
"""Outputs of a panel."""
_OFFSETS = {"none": 0, "stored": 1, "minus eight": 2, "zeros": 3}
CHUNK = 32 << 20
"""Bytes of memory that matrices share."""
_lock = threading.Lock()
_chunk = torch.empty(0, dtype=torch.uint8)
"""What is left of the latest; it lives as long as a matrix in it."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix ``[out, in]`` in panels of sixteen outputs.

    The same bits as in the `Weight` that it is made of, in another order.
    """

    format: str
    shape: tuple[int, int]
    data: torch.Tensor
    scales: torch.Tensor | None = None
    bits: int = 0
    group_blocks: int = 0
    """Blocks of 32 that share a scale; 0: one scale an output."""
    offsets: int = 0

    @property
    def whole_numbers(self) -> bool:
        return self.format not in FLOATS

    @property
    def num_bytes(self) -> int:
        """Without what fills floats up to whole panels."""
        if not self.whole_numbers:
            return self.shape[0] * self.shape[1] * self.data.element_size()
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)


def in_panels(weight: Weight | Panels) -> Panels:
    """A weight as the kernels read it."""
    if isinstance(weight, Panels):
        return weight
    out, into = weight.shape
    if not weight.whole_numbers:
        padded = F.pad(weight.data, (0, 0, 0, -out % OUTPUTS)).view(-1, OUTPUTS, into)
        return Panels(weight.format, weight.shape, _placed(padded.transpose(1, 2)))
    q, scale, offset = numbers(weight)
    shifted = weight.format == "q4_0"
    q = F.pad(q.reshape(out, into), (0, -into % BLOCK, 0, -out % OUTPUTS)) + (8 if shifted else 0)
    bits = 8 if weight.format in ("int8", "q8_0") else 4
    kind = "stored" if offset is not None else "minus eight" if shifted else "none"
    if weight.format == "uint4":
        assert weight.scales is not None
        kind, offset = "zeros", weight.scales[..., 1].float()  # the product with the scale needs more than 16 bits
    group_blocks = 0 if weight.format == "int8" else q.shape[1] // scale.shape[1] // BLOCK
    scales = scale[:, 0] if weight.format == "int8" else _scales(scale, offset)
    data = _placed(_data(q, bits))
    return Panels(weight.format, weight.shape, data, _placed(scales), bits, group_blocks, _OFFSETS[kind])


def _placed(matrix: torch.Tensor) -> torch.Tensor:
    """A copy that lies in one piece, in memory that small matrices share.

    A matrix of less than 2 MB would lie in small pages, and every page is looked up in each step.
    """
    global _chunk
    if matrix.nbytes > CHUNK // 2:
        return matrix.contiguous()
    room = matrix.nbytes + -matrix.nbytes % 64
    with _lock:
        if room > len(_chunk):
            _chunk = torch.empty(CHUNK, dtype=torch.uint8)
        mine, _chunk = _chunk[:room], _chunk[room:]
    placed = mine[: matrix.nbytes].view(matrix.dtype).view(matrix.shape)
    return placed.copy_(matrix)


def _data(q: torch.Tensor, bits: int) -> torch.Tensor:
    """q ``[out, in]``, whole panels and blocks → bytes, panel after panel, block after block."""
    out, into = q.shape
    # [panel, pair, side, the eight outputs of the side with their two numbers]
    sides = q.view(out // OUTPUTS, 2, 8, into // 2, 2).permute(0, 3, 1, 2, 4)
    vectors = sides.reshape(out // OUTPUTS, into // 2, 2, 16)
    if bits == 8:
        return vectors.transpose(2, 3).to(torch.int8)
    low, high = vectors[:, :, 0].to(torch.uint8), vectors[:, :, 1].to(torch.uint8)
    halves = low | high << 4  # [panel, pair, 16]: two pairs make a word
    return halves.view(out // OUTPUTS, into // 4, 2, 16).transpose(2, 3)


def _scales(scale: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
    """Float16 ``[panel, group, 1 or 2, 16]``."""
    parts = [scale] if offset is None else [scale, offset]
    padded = [F.pad(part, (0, 0, 0, -len(part) % OUTPUTS)).view(-1, OUTPUTS, part.shape[1]) for part in parts]
    return torch.stack(padded, 1).permute(0, 3, 1, 2).half()
