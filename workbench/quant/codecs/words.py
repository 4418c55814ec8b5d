"""Numbers of a few bits in words of 32, the first number lowest. All checkpoint formats do this, along one side or the
other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Numbers ``[rows, n]``, 0 … 2^bits − 1, as int32 ``[rows, ceil(n · bits / 32)]``; ``bits`` divides 32.

    Raises ValueError for a number that would reach into its neighbour's bits.
    """
    if bool(((numbers < 0) | (numbers >= 1 << bits)).any()):
        raise ValueError(f"there are numbers beyond 0 … {(1 << bits) - 1}: they do not fit into {bits} bits")
    each = 32 // bits
    filled = F.pad(numbers.long(), (0, -numbers.shape[1] % each))
    words = (filled.reshape(len(filled), -1, each) << torch.arange(each) * bits).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)  # the top bit is a sign there


def unpack(words: Tensor, bits: int, length: int) -> Tensor:
    """The way back: int16 ``[rows, length]``."""
    # Masked after the shift: the words are signed, and a shift drags the sign along.
    numbers = (words[..., None] >> torch.arange(32 // bits, dtype=torch.int32) * bits) & (1 << bits) - 1
    return numbers.flatten(-2)[:, :length].to(torch.int16)
