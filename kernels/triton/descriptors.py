"""Tensor descriptors of keys and values: what the hardware needs to copy a block by one instruction (TMA).

The tensor memory accelerator of Hopper and newer brings a tile from memory into shared memory while the threads
compute: no registers for addresses, no instruction a line. It is told base, shape and strides once; what lies past the
shape counts as zero. On older chips Triton would emulate it, at the cost of registers: pointers are better there.
"""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.triton.attention_call import architecture, padded_dim

FIRST_WITH_TMA = 90


def uses_descriptors(k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether these keys and values, ``[tokens, heads, head_dim]``, are read through descriptors where they are."""
    if k.dtype == torch.float32 or k.device.type != "cuda":
        return False
    arch = architecture(k.device)
    return arch is not None and arch >= FIRST_WITH_TMA and describable(k) and describable(v)


def describable(x: torch.Tensor) -> bool:
    """Whether the hardware could copy blocks of ``x`` [tokens, heads, head_dim]: 16-byte steps, and not empty."""
    steps = [stride * x.element_size() for stride in x.stride()[:2]]
    return x.numel() > 0 and x.data_ptr() % 16 == 0 and all(step > 0 and step % 16 == 0 for step in steps)


def describe(x: torch.Tensor, block_n: int) -> TensorDescriptor:
    """Blocks of ``block_n`` tokens of one head of ``x`` [tokens, heads, head_dim], the head size padded.

    Heads stand outermost: Triton drops leading dimensions of size 1, so the block lands as a matrix in shared memory.
    """
    return TensorDescriptor.from_tensor(x.transpose(0, 1), [1, block_n, padded_dim(x.shape[2])])
