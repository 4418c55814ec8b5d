"""Prefill attention at the shapes of the FlashAttention papers: 16 ki tokens in all, 2,048 numbers a token, beside
PyTorch's own backends and FlexAttention."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernels
from workbench.measure.gpu.cases import OURS, Call, Case, drawn
from workbench.measure.gpu.scale import Scale

HIDDEN = 2048
FLEX_LENGTHS = (8192,)
"""FlexAttention is compiled for each shape for many seconds: one length stands for all."""


def cases(scale: Scale) -> list[Case]:
    total = scale.pick(16384, 32)
    shapes = scale.pick(
        [(128, n) for n in (8192, 16384, 2048, 4096)] + [(64, 8192), (256, 8192)],
        [(16, 16), (16, 32)],
        [(128, 8192)],
    )
    return [_case(scale, total, dim, n, causal) for dim, n in shapes for causal in (False, True)]


def _case(scale: Scale, total: int, head_dim: int, length: int, causal: bool) -> Case:
    batch, heads = total // length, scale.pick(HIDDEN // head_dim, 2)
    flops = 4.0 * batch * length**2 * heads * head_dim / (2 if causal else 1)
    name = f"prefill d{head_dim} {length}{' causal' if causal else ''}"
    return Case(name, partial(_make, scale, batch, length, heads, head_dim, causal), flops=flops)


def _make(scale: Scale, batch: int, length: int, heads: int, head_dim: int, causal: bool) -> dict[str, Call]:
    q, k, v = (drawn(batch * length, heads, head_dim, scale=scale, seed=n) for n in range(3))
    starts = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=scale.device)
    shown = [x.view(batch, length, heads, head_dim).transpose(1, 2) for x in (q, k, v)]
    scale_by = head_dim**-0.5

    def ours() -> Any:
        return kernels.flash_attention(q, k, v, starts, starts, scale=scale_by, causal=causal, maker="triton")

    def torchs(backend: SDPBackend) -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*shown, is_causal=causal, scale=scale_by)

    found: dict[str, Call] = {OURS: ours}
    backends = scale.pick(
        {
            "sdpa flash": SDPBackend.FLASH_ATTENTION,
            "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
            "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
        },
        {"sdpa math": SDPBackend.MATH},
    )
    found |= {label: partial(torchs, backend) for label, backend in backends.items()}
    if (head_dim == 128 and length in FLEX_LENGTHS) or scale.tiny:
        found["flex"] = partial(_flex, scale, shown, causal, scale_by)
    return found


def _flex(scale: Scale, shown: list[torch.Tensor], causal: bool, scale_by: float) -> torch.Tensor:
    length = shown[0].shape[2]
    mask = _causal_mask(length, scale.device) if causal else None
    return flex_attention(scale.device == "cuda")(*shown, block_mask=mask, scale=scale_by)  # type: ignore[no-any-return]


@cache
def flex_attention(compiled: bool) -> Any:
    """PyTorch's FlexAttention: one kernel where it is compiled, else many."""
    from torch.nn.attention import flex_attention as torchs

    return torch.compile(torchs.flex_attention, dynamic=False) if compiled else torchs.flex_attention


@cache
def _causal_mask(length: int, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device=device)
