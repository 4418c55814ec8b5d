"""The small operations in C++; see `layers.cpp` for how and `kernels.reference.layers` for what."""

from __future__ import annotations

import torch

from kernels.cpu.native import call, empty


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None) -> torch.Tensor:
    """As `kernels.reference.rms_norm`."""
    rows = x.reshape(-1, x.shape[-1])
    result = empty("rms_norm", (len(rows), rows.shape[1]))
    call("rms_norm", "slppfiip", rows, rows.stride(0), residual, weight, eps, *rows.shape, result)
    return result.view(x.shape)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `kernels.reference.silu_mul`."""
    rows, width = gate_up.reshape(-1, gate_up.shape[-1]), gate_up.shape[-1] // 2
    result = empty("silu_mul", (len(rows), width))
    call("silu_mul", "piip", rows, len(rows), width, result)
    return result.view(*gate_up.shape[:-1], width)


def rope_and_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """As `kernels.reference.rope_and_write`."""
    num_kv_heads, head_dim = cache.shape[3:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    call(
        "rope_and_write", "ppppppiiiiippf",
        qkv, positions, cos, sin, slots, cache, cache.dtype == torch.float16, len(qkv), num_heads, num_kv_heads,
        head_dim, q_norm, k_norm, eps,
    )  # fmt: skip
