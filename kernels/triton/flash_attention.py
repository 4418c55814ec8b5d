"""FlashAttention, forward (Dao et al. 2022, Dao 2023): attention that never holds the scores of more than one tile.

A program keeps ``BLOCK_M`` rows of queries and walks over blocks of keys with a running softmax
(`kernels.triton.attention_walk`). What goes to memory is the result and the log-sum-exp. The backward pass is out of
scope: the project serves models and trains none.

- Everything is in the log2 domain: ``exp2`` is one instruction and ``log2(e)`` is folded into the scale.
- Blocks that no row of the tile sees are skipped: past the diagonal, before the window. Blocks that every row sees
  whole go through a loop without masks; only the edges (window, diagonal, tail) are masked.
- Blocks begin at multiples of BLOCK_N of the sequence, wherever a tile begins, and are taken in order. A block that a
  row does not see leaves its numbers bit by bit as they are, so a row's result depends neither on its neighbours in the
  batch nor on how a prompt is cut into chunks.
- K and V come through descriptors (TMA, Hopper and newer) where they are laid out so that those can be made, else
  through pointers. Tile sizes: `kernels.triton.flash_tiles`. One program a tile; no warp specialization, which Triton
  compiles on Hopper for few shapes only, and no persistent programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.triton.attention_call import prepare, refusal
from kernels.triton.attention_tiles import (
    keys_of,
    load_rows,
    locate,
    offsets,
    queries_of,
    store_rows,
    unpack,
)
from kernels.triton.attention_variants import attention_variant
from kernels.triton.attention_walk import finish, nothing_yet, walk_all
from kernels.triton.descriptors import FIRST_WITH_TMA, describable, describe, uses_descriptors
from kernels.triton.flash_tiles import Tiles
from kernels.triton.variants import Variant

__all__ = ["flash_attention", "refusal", "variants"]


@triton.jit
def _flash(
    q,
    k,
    v,
    out,
    lse,
    cu_q,
    cu_k,
    sinks,
    batch,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    num_heads,
    window,
    to_log2,
    slope,
    cap,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # the last queries see the most keys: the longest work first
    kv_head = tl.program_id(1)
    sequence = locate(cu_q, batch, tile, GROUP, BLOCK_M)
    q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
    k_begin, k_len = keys_of(cu_k, sequence)
    if first_row >= q_len * GROUP:
        return
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    q_tile = load_rows(q, offsets(q_begin, tokens, heads, stride_qt, stride_qh), real, HEAD_DIM, PADDED)
    own = k_len - q_len + tokens

    if not DESCRIPTORS:
        k += k_begin.to(tl.int64) * stride_kt + kv_head.to(tl.int64) * stride_kh
        v += k_begin.to(tl.int64) * stride_vt + kv_head.to(tl.int64) * stride_vh
    acc, l_i, m_i = nothing_yet(sinks, heads, real, BLOCK_M, PADDED, HAS_SINKS)
    acc, l_i, m_i = walk_all(
        acc, l_i, m_i, q_tile, k, v, None, stride_kt, stride_vt, 0, k_begin, kv_head,
        first_row, own, q_len, k_len, window, to_log2, slope, cap,
        GROUP, HEAD_DIM, PADDED, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW, HAS_CAP, DESCRIPTORS, 0, PRECISION,
    )  # fmt: skip

    rows, log2_sum = finish(acc, l_i, m_i)
    # The same rows as before, worked out anew so that nothing of them is kept through the loops.
    q_begin, q_len, first_row = queries_of(cu_q, sequence, tile, GROUP, BLOCK_M)
    tokens, heads, real = unpack(first_row, q_len, kv_head, GROUP, BLOCK_M)
    at = offsets(q_begin, tokens, heads, stride_ot, stride_oh)
    store_rows(out, at, real, rows, HEAD_DIM, PADDED)
    # Natural: log2 times ln(2).
    tl.store(lse + offsets(q_begin, tokens, heads, num_heads, 1), log2_sum * 0.6931471805599453, mask=real)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    config: Tiles | None = None,
    descriptors: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.flash_attention`: the same arguments, out and natural log-sum-exp (float32).

    ``config`` and ``descriptors`` overrule the table and the choice between descriptors and pointers. Raises
    ValueError for what it does not take, descriptors that cannot be made included.
    """
    if descriptors is None:
        descriptors = uses_descriptors(k, v)
    elif descriptors and not (describable(k) and describable(v)):
        raise ValueError("k and v, and each of their tokens and heads, must begin at multiples of 16 bytes for TMA")
    call = prepare(
        q, k, v, cu_seqlens_q, cu_seqlens_k,
        scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks, config=config, descriptors=descriptors,
    )  # fmt: skip
    if descriptors:
        call.launch(_flash, k=describe(k, call.tiles.block_n), v=describe(v, call.tiles.block_n))
    else:
        call.launch(_flash)
    return call.out, call.lse


def variants() -> list[Variant]:
    """Every head size on every chip with all that a call may ask for, some plain; K and V by pointers where there are
    descriptors too; the other types."""
    found = []
    everything = {"window": True, "cap": True, "sinks": True}
    for arch in (80, 90, 100):
        tma = arch >= FIRST_WITH_TMA
        unit = {80: "mma", 90: "wgmma", 100: "tcgen05"}[arch]
        usual = {"descriptors": tma, "wants": (unit, "tma" if tma else "cp.async")}

        def add(head_dim: int, arch: int = arch, **options: Any) -> None:
            found.append(attention_variant("flash", _flash, arch, head_dim, **options))

        for head_dim in (64, 80, 96, 128, 192, 256):
            add(head_dim, **usual, **everything)
        for head_dim in (64, 128, 256):
            add(head_dim, **usual)
            if tma:
                add(head_dim, wants=(unit, "cp.async"), **everything)
        add(128, **usual, causal=False)
        add(128, **usual, dtype="fp16")
        add(128, dtype="fp32")
    return found
