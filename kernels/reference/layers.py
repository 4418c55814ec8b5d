"""The small operations between the matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.reference.attention import write_kv


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None) -> torch.Tensor:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension (Zhang and Sennrich 2019).

    x ``[…, d]``, weight ``[d]``; returns the shape of x. With a ``residual`` of the same shape x is added to it in
    place and the sum is normalized: a layer's output joins the stream and becomes the next layer's input in one go.
    """
    if residual is not None:
        x = residual.add_(x)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> None:
    """Rotates the heads of ``x`` in place (RoPE, Su et al. 2021, in the half-split layout of Llama checkpoints).

    x ``[num_tokens, num_heads, head_dim]``; cos, sin ``[num_tokens, head_dim // 2]`` float32, by each token's position.
    Dimension i and i + head_dim/2 form a pair that is turned by the angle of that position; ``interleaved``:
    dimensions 2i and 2i + 1 do (DeepSeek).
    """
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
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
    """What stands between the projection and attention: heads normalized (Qwen3), queries and keys rotated in place,
    new keys and values written.

    qkv ``[num_tokens, (num_heads + 2 · num_kv_heads) · head_dim]``: query, key and value heads side by side; positions
    ``[num_tokens]`` int64; cos, sin ``[max_len, head_dim // 2]`` float32; slots ``[num_tokens]`` int64; cache
    ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``; the norms' weights ``[head_dim]``. Nothing is
    written into the cache for a slot below 0.
    """
    kv_heads, head_dim = cache.shape[3:]
    qkv = qkv.view(len(qkv), -1, head_dim)
    heads = qkv.shape[1] - 2 * kv_heads
    if q_norm is not None and k_norm is not None:
        qkv[:, :heads] = rms_norm(qkv[:, :heads], q_norm, eps)
        qkv[:, heads:-kv_heads] = rms_norm(qkv[:, heads:-kv_heads], k_norm, eps)
    # Query and key heads stand side by side and turn together; key and value heads stand side by side too, in the
    # cache's own order, and are stored as one row.
    rotary_embedding(qkv[:, : heads + kv_heads], cos[positions], sin[positions])
    write_kv(qkv[:, heads:].view(-1, 2, kv_heads, head_dim), cache, slots)
