"""Fused operations beside PyTorch's: norms, activations, rotation with the cache write, softmax, products.

What they must move is counted by `workbench.measure.fusion`; tensors are several times larger than a level-2 cache.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

import kernels
from workbench.measure import fusion
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale


def cases(scale: Scale) -> list[Case]:
    tokens, width, wide = scale.pick((32768, 4096, 11008), (4, 32, 48))
    size = 2 if scale.device == "cuda" else 4
    heads = scale.pick((32, 8, 128), (2, 1, 16))
    rows, columns = scale.pick((8192, 16384), (4, 40))
    edges = scale.pick([(8192, 8192, 8192), (4096, 4096, 4096), (32, 8192, 8192)], [(16, 32, 16)])
    found = [
        Case(f"rms_norm + residual {tokens} × {width}", partial(_norm, scale, tokens, width),
             bytes=fusion.rms_norm(tokens, width, size).fused_bytes),
        Case(f"silu_mul {tokens} × {wide}", partial(_silu, scale, tokens, wide),
             bytes=fusion.silu_mul(tokens, wide, size).fused_bytes),
        Case(f"rope + cache write {tokens} × {heads}", partial(_rope, scale, tokens, *heads),
             bytes=fusion.rope_and_write(tokens, *heads, size).fused_bytes),
        Case(f"softmax {rows} × {columns}", partial(_softmax, scale, rows, columns), bytes=2 * rows * columns * size),
    ]  # fmt: skip
    for m, n, k in edges:
        moved = fusion.matmul(m, n, k, size).fused_bytes
        found.append(Case(f"matmul {m} × {n} × {k}", partial(_matmul, scale, m, n, k), 2.0 * m * n * k, moved))
    return found[:2] if scale.quick and not scale.tiny else found


def _norm(scale: Scale, tokens: int, width: int) -> dict[str, Call]:
    x, stream = (drawn(tokens, width, scale=scale, seed=n) for n in range(2))
    weight = drawn(width, scale=scale, seed=2)

    def made(maker: str) -> torch.Tensor:
        return kernels.rms_norm(x, weight, 1e-6, residual=stream, maker=maker)

    return {
        OURS: lambda: made("triton"),
        "torch, by definition": lambda: made("reference"),
        "torch F.rms_norm after add_": lambda: F.rms_norm(stream.add_(x), (width,), weight, 1e-6),
    }


def _silu(scale: Scale, tokens: int, width: int) -> dict[str, Call]:
    gate_up = drawn(tokens, 2 * width, scale=scale)
    return {
        OURS: lambda: kernels.silu_mul(gate_up, maker="triton"),
        "torch": lambda: kernels.silu_mul(gate_up, maker="reference"),
    }


def _rope(scale: Scale, tokens: int, num_heads: int, kv_heads: int, head_dim: int) -> dict[str, Call]:
    qkv = drawn(tokens, (num_heads + 2 * kv_heads) * head_dim, scale=scale)
    angles = torch.rand(4096, head_dim // 2, device=scale.device)
    positions = torch.arange(tokens, device=scale.device) % 4096
    cache = drawn(-(-tokens // 16), 16, 2, kv_heads, head_dim, scale=scale)
    slots = torch.arange(tokens, device=scale.device)
    given = (qkv, positions, angles.cos(), angles.sin(), slots, cache)
    return {
        OURS: lambda: kernels.rope_and_write(*given, maker="triton"),
        "torch": lambda: kernels.rope_and_write(*given, maker="reference"),
    }


def _softmax(scale: Scale, rows: int, columns: int) -> dict[str, Call]:
    x = drawn(rows, columns, scale=scale)
    return {OURS: lambda: kernels.softmax(x, maker="triton"), "torch": lambda: x.softmax(-1)}


def _matmul(scale: Scale, m: int, n: int, k: int) -> dict[str, Call]:
    a, b, bias = drawn(m, k, scale=scale), drawn(k, n, scale=scale, seed=1), drawn(n, scale=scale, seed=2)
    return {
        OURS: lambda: kernels.matmul(a, b, bias, "silu", maker="triton"),
        "cuBLAS, then SiLU": lambda: F.silu(torch.addmm(bias, a, b)),
        "cuBLAS alone": lambda: torch.addmm(bias, a, b),
    }
