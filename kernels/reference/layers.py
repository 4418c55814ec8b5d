"""The small operations between the matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension (Zhang and Sennrich 2019).

    x ``[…, d]``, weight ``[d]``; returns the shape of x.
    """
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotates the heads of ``x`` in place (RoPE, Su et al. 2021, in the half-split layout of Llama checkpoints).

    x ``[num_tokens, num_heads, head_dim]``; cos, sin ``[num_tokens, head_dim // 2]`` float32, by each token's position.
    Dimension i and i + head_dim/2 form a pair that is turned by the angle of that position.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    first.copy_(turned[0])
    second.copy_(turned[1])


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU's middle: ``silu(gate) · up`` (Shazeer 2020).

    gate_up ``[num_tokens, 2 · d]``, gate first; returns ``[num_tokens, d]``.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
