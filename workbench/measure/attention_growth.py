"""How attention's memory and time grow with the length, natively on this machine: written down, and in tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels
from workbench.measure.peak_memory import peak_bytes
from workbench.measure.timing import Timing, time_call

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Grown:
    """One way at one length. ``peak``: bytes beyond the inputs, the result included."""

    way: str
    length: int
    peak: int
    time: Timing


def written_down(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of ``[heads, N, dim]`` with all its scores in memory."""
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT * q.shape[2] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's own, which takes a FlashAttention kernel where it has one."""
    return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def engines_own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """This project's kernel: the C++ one over pages of `BLOCK` tokens on a CPU, the Triton one on a GPU. N must be a
    multiple of `BLOCK`."""
    length, scale = q.shape[1], q.shape[2] ** -0.5
    flat = [x.transpose(0, 1).contiguous() for x in (q, k, v)]
    if q.is_cuda:
        cu = torch.tensor([0, length], dtype=torch.int32, device=q.device)
        return kernels.flash_attention(*flat, cu, cu, scale=scale)[0].transpose(0, 1)
    cache = torch.stack(flat[1:], 1).view(length // BLOCK, BLOCK, 2, *flat[1].shape[1:])
    table = torch.arange(length // BLOCK)[None]
    return kernels.paged_attention(flat[0], cache, table, [0, length], [length], scale=scale).transpose(0, 1)


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "written down": written_down,
    "SDPA": sdpa,
    "the engine's own": engines_own,
}


def attention_growth(
    lengths: Sequence[int], num_heads: int = 9, head_dim: int = 64, device: str = "cpu", repeats: int = 3
) -> list[Grown]:
    """Every way at every length, in float32. Raises ArithmeticError if two ways do not agree."""
    found = []
    for length in lengths:
        draw = torch.Generator().manual_seed(length)
        inputs = [torch.randn(num_heads, length, head_dim, generator=draw).to(device) for _ in range(3)]
        first: torch.Tensor | None = None
        for name, way in WAYS.items():
            call: Callable[[], Any] = lambda way=way, inputs=inputs: way(*inputs)
            out = call()
            first = out if first is None else first
            if not torch.allclose(first, out, atol=1e-4, rtol=1e-4):
                raise ArithmeticError(f"{name} gives other results than {next(iter(WAYS))} at N = {length}")
            del out
            peak = peak_bytes(call, device)
            found.append(Grown(name, length, peak, time_call(call, device=torch.device(device), repeats=repeats)))
    return found
