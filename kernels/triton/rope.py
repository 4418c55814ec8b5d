"""Between projection and attention in one pass, in Triton; see `kernels.reference.rope_and_write` for what.

Apart, the norms of query and key heads, the rotation and the cache write each read what the one before has written.
Here a program reads some heads of one token once, as first and second halves, and writes what is due: queries and keys
back in place, keys and values also into the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.triton.launch import require, shared, strange
from kernels.triton.variants import Variant

PAIRS = 8
"""Of a thread: a first half is read 16 bytes at once in bfloat16."""


@triton.jit
def _rope_and_write(
    qkv_ptr, positions_ptr, cos_ptr, sin_ptr, slots_ptr, cache_ptr, q_norm_ptr, k_norm_ptr,
    qkv_stride, block_stride, row_stride, kind_stride, head_stride, eps, block_size, num_heads, num_kv_heads,
    HEAD_DIM: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    within = pair < HALF  # heads need be no power of two
    inside = (head < num_heads + 2 * num_kv_heads) & within
    first_ptr = qkv_ptr + token * qkv_stride + head * HEAD_DIM + pair
    first = tl.load(first_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + HALF, mask=inside, other=0.0).to(tl.float32)

    turns = head < num_heads + num_kv_heads
    one, two = first, second
    if q_norm_ptr is not None:
        query = head < num_heads
        scale = tl.rsqrt(tl.sum(first * first + second * second, 1) / HEAD_DIM + eps)[:, None]
        one *= scale * _either(query, q_norm_ptr + pair, k_norm_ptr + pair, within)
        two *= scale * _either(query, q_norm_ptr + HALF + pair, k_norm_ptr + HALF + pair, within)
    angle = tl.load(positions_ptr + token).to(tl.int64) * HALF + pair
    cos = tl.load(cos_ptr + angle, mask=within, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=within, other=0.0)
    kind = qkv_ptr.dtype.element_ty
    left = tl.where(turns, one * cos - two * sin, first).to(kind)
    right = tl.where(turns, two * cos + one * sin, second).to(kind)
    tl.store(first_ptr, left, mask=inside & turns)
    tl.store(first_ptr + HALF, right, mask=inside & turns)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        kv = head - num_heads  # key heads, then value heads: the cache's own order
        row = (slot // block_size) * block_stride + (slot % block_size) * row_stride
        to_ptr = cache_ptr + row + kv // num_kv_heads * kind_stride + kv % num_kv_heads * head_stride + pair
        stored = cache_ptr.dtype.element_ty
        tl.store(to_ptr, left.to(stored), mask=inside & (kv >= 0))
        tl.store(to_ptr + HALF, right.to(stored), mask=inside & (kv >= 0))


@triton.jit
def _either(query, q_ptr, k_ptr, within):
    """The query norm's weights for query heads, the key norm's for others."""
    q = tl.load(q_ptr, mask=within, other=0.0).to(tl.float32)
    k = tl.load(k_ptr, mask=within, other=0.0).to(tl.float32)
    return tl.where(query, q, k)


class Config(NamedTuple):
    """HEADS of one token belong to a program, BLOCK pairs each."""

    HEADS: int
    BLOCK: int
    num_warps: int


def config(head_dim: int) -> Config:
    """More threads than a table's row has numbers: else Triton spreads that row thinly over the threads, and brings
    heads into the same order through shared memory."""
    block = triton.next_power_of_2(head_dim // 2)
    warps = max(4, min(16, block // 16))
    return Config(max(1, PAIRS * 32 * warps // block), block, warps)


def refusal(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
) -> str:
    """Why these tensors cannot be taken; empty if they can."""
    kv_heads, head_dim = cache.shape[3:]
    if qkv.dim() != 2 or head_dim % 2 or qkv.shape[1] % head_dim or qkv.shape[1] <= 2 * kv_heads * head_dim:
        return f"rows of {list(qkv.shape[1:])} numbers hold no query heads beside 2 × {kv_heads} heads of {head_dim}"
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape[1] != head_dim // 2 or table.dtype != torch.float32 or not table.is_contiguous():
            return (
                f"{name} is {table.dtype} {list(table.shape)}; whole heads of {head_dim} are turned by contiguous "
                f"float32 rows of {head_dim // 2} (no partial rotation)"
            )
    for name, numbers in (("positions", positions), ("slots", slots)):
        if (
            numbers.shape != (len(qkv),)
            or not numbers.is_contiguous()
            or numbers.dtype not in (torch.int64, torch.int32)
        ):
            return (
                f"{name} is {numbers.dtype} {list(numbers.shape)}, and it takes {len(qkv)} whole numbers side by side"
            )
    if (q_norm is None) != (k_norm is None):
        return "one of q_norm and k_norm without the other"
    return shared(qkv=qkv, cache=cache) or strange(qkv=qkv, cache=cache, q_norm=q_norm, k_norm=k_norm)


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
    """As `kernels.reference.rope_and_write`; for a slot below 0 nothing is written into the cache.

    Raises ValueError for what it cannot take (`refusal`).
    """
    reason = refusal(qkv, positions, cos, sin, slots, cache, q_norm, k_norm)
    require("rope_and_write", reason, qkv, positions, cos, sin, slots, cache, q_norm, k_norm)
    if not len(qkv):
        return
    _, block_size, _, kv_heads, head_dim = cache.shape
    heads, chosen = qkv.shape[1] // head_dim, config(head_dim)
    strides = list(cache.stride()[:4])
    if strides[0] == block_size * strides[1]:
        # Blocks without gaps between them: a slot is found without a division if it is a block of its own.
        block_size, strides[0] = 1, strides[1]
    _rope_and_write[(len(qkv), triton.cdiv(heads, chosen.HEADS))](
        qkv, positions, cos, sin, slots, cache, q_norm, k_norm, qkv.stride(0), *strides, eps,
        block_size, heads - 2 * kv_heads, kv_heads, HEAD_DIM=head_dim, **chosen._asdict(),
    )  # fmt: skip


def variants() -> list[Variant]:
    """Head sizes of common models in bfloat16, without and with norms of heads; a cache whose blocks have no gaps."""
    pointers = dict.fromkeys(("qkv_ptr", "cache_ptr"), "*bf16") | dict.fromkeys(("positions_ptr", "slots_ptr"), "*i64")
    pointers |= dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32")
    norm_pointers = dict.fromkeys(("q_norm_ptr", "k_norm_ptr"), "*bf16")
    strides = ("qkv_stride", "block_stride", "row_stride", "kind_stride", "head_stride")
    numbers = dict.fromkeys((*strides, "num_heads", "num_kv_heads"), "i32") | {"eps": "fp32"}
    made = []
    for head_dim, normed in ((64, False), (80, False), (96, False), (128, False), (128, True), (256, False)):
        chosen = config(head_dim)
        known = {"HEAD_DIM": head_dim, "HEADS": chosen.HEADS, "BLOCK": chosen.BLOCK, "block_size": 1}
        given = pointers | norm_pointers if normed else pointers
        made.append(
            Variant(
                name=f"bf16-{head_dim}{'-norms' if normed else ''}",
                kernel=_rope_and_write,
                signature=given | numbers,
                constexprs=known if normed else known | dict.fromkeys(norm_pointers),
                divisible_by_16=(*given, *strides),
                num_warps=chosen.num_warps,
                wants=("ldg.128", "stg.128"),
            )
        )
    return made
