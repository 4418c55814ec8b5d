"""4-bit weights by 16-bit activations in Triton; see `kernels.reference.int4_tiles` for what, and how weights lie.

Few rows: all that counts is to read the weights once and to have enough programs for it. So

- the weight is the *first* operand, ``out^T = weight · x^T``: a matrix instruction has 16 or 64 rows and as few as 8
  columns, and with outputs as its rows a single token wastes little;
- words become numbers by bits alone. ``0x4300 | q`` are the bits of the bfloat16 128 + q, ``0x6400 | q`` those of the
  float16 1024 + q (Kim and others, 2022, section 3; FasterTransformer), so a mask, an *or* and one subtraction, which
  also takes away the zero point, give ``q − zero`` exactly;
- a scale is multiplied to the sums of its group, in float32, instead of to each weight;
- the inputs are split among programs (split-K) whose sums a second kernel adds up, always in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.reference.int4_tiles import TILE_K, TILE_N, WORDS, Int4Tiles
from kernels.triton.launch import require, strange
from kernels.triton.matmul import capability
from kernels.triton.variants import ARCHS, Variant


@triton.jit
def _w4a16(
    x_ptr, words_ptr, params_ptr, bias_ptr, out_ptr, m, n, k, x_row, blocks, blocks_each, group_blocks, padded_n,
    WHOLE_K: tl.constexpr, SHARED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILE_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """SHARED: of the four products of a block, how many have the same scale. group_blocks: blocks of a group."""
    # Neighbours share a tile of weights, and all go through the inputs side by side, so the level-2 cache holds them.
    tiles_m = tl.cdiv(m, BLOCK_M)
    rows = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * blocks_each
    last = tl.minimum(first + blocks_each, blocks)
    word = tl.arange(0, WORDS)
    piece = TILE_N * WORDS
    at = ((outputs // TILE_N).to(tl.int64) * blocks + first) * piece + outputs % TILE_N * WORDS
    words_ptrs = words_ptr + at[:, None] + word[None, :]
    x_ptrs = x_ptr + rows.to(tl.int64)[None, :] * x_row + (first * (4 * WORDS) + word)[:, None]
    inside = rows[None, :] < m
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for block in range(first, last):
        words = tl.load(words_ptrs)
        for part in tl.static_range(4 // SHARED):
            if SHARED == 4:
                group = block // group_blocks
            else:
                group = block * (4 // SHARED) + part
            params = tl.load(params_ptr + group * padded_n + outputs)
            product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for one in tl.static_range(SHARED):
                skip = (part * SHARED + one) * WORDS
                if WHOLE_K:
                    x = tl.load(x_ptrs + skip, mask=inside, other=0.0)
                else:
                    left = k - block * (4 * WORDS) - skip
                    x = tl.load(x_ptrs + skip, mask=inside & (word < left)[:, None], other=0.0)
                weight = _whole(words >> 4 * (part * SHARED + one), params >> 16, x.dtype)
                product = tl.dot(weight, x, product)
            scale = (params & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            total += product * scale[:, None]
        words_ptrs += piece
        x_ptrs += 4 * WORDS
    place = rows.to(tl.int64)[None, :] * n + outputs[:, None]
    mask = inside & (outputs[:, None] < n)
    if SPLIT:
        tl.store(out_ptr + tl.program_id(1).to(tl.int64) * m * n + place, total, mask=mask)
    else:
        if bias_ptr is not None:
            total += tl.load(bias_ptr + outputs, mask=outputs < n, other=0.0).to(tl.float32)[:, None]
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _whole(bits, zero, DTYPE: tl.constexpr):
    """``q − zero``, exactly: q of the low four bits of ``[outputs, words]``, zero ``[outputs]``."""
    q = bits & 15
    if tl.bfloat16 == DTYPE:
        number = (q | 0x4300).to(tl.bfloat16, bitcast=True)
        return number - (zero + 128).to(tl.bfloat16)[:, None]
    else:
        number = (q | 0x6400).to(tl.float16, bitcast=True)
        return number - (zero + 1024).to(tl.float16)[:, None]


@triton.jit
def _add_splits(partial_ptr, bias_ptr, out_ptr, count, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.load(partial_ptr + at, mask=inside, other=0.0)
    place = at
    for _ in tl.static_range(1, SPLITS):
        place += count
        total += tl.load(partial_ptr + place, mask=inside, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + at % n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


class Config(NamedTuple):
    """The tile of a program, and how it is computed."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


ADD_BLOCK = 1024
"""Numbers of a program of the second kernel."""
MOST_SPLITS = 8
LEAST_BLOCKS = 4
"""Of 128 inputs, that a split has at least: less is no work for the loads to run ahead of."""
SMS = 132
"""Processors of an H100 or H200; where kernels are interpreted there are none to count."""
REGISTERS = 128
"""Of a thread at most, with few rows: four programs of four warps on a processor."""
EACH = 2
"""Programs that a processor shall have, so that one computes while another waits for memory."""


def config(m: int, group: int, capability: int) -> Config:
    """By rows. Up to 64 they are one tile, so that weights are read and turned into numbers once; with more, tiles are
    as large as registers (on Blackwell tensor memory) allow, which hold the sums of a group beside those of all; groups
    smaller than a block take room for each."""
    if m <= 64:
        rows = 16 if m <= 16 else 32 if m <= 32 else 64
        return Config(rows, 64, 4, 5 if rows < 64 else 4)
    return Config(128, 128, 8, 3) if capability // 10 == 9 and group >= TILE_K else Config(64, 128, 8, 3)


def splits(m: int, n: int, k: int, chosen: Config, processors: int) -> int:
    """Among how many programs the inputs of a tile are split, 1 to `MOST_SPLITS`. What their sums take to write and
    read, mostly in the level-2 cache, is at most twice the bytes of the weights."""
    tiles = triton.cdiv(m, chosen.BLOCK_M) * triton.cdiv(n, chosen.BLOCK_N)
    wanted = triton.cdiv(EACH * processors, tiles) if tiles < processors else 1
    return max(1, min(wanted, MOST_SPLITS, triton.cdiv(k, TILE_K) // LEAST_BLOCKS, k // (8 * m)))


def refusal(x: torch.Tensor, weight: Int4Tiles, bias: torch.Tensor | None = None) -> str:
    """Why these tensors cannot be taken; empty if they can."""
    if x.dim() != 2 or x.shape[1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = [list(one.shape) for one in (x, bias) if one is not None]
        return f"x and bias {shapes} do not fit a weight {list(weight.shape)}"
    if reason := strange(x=x, bias=bias):
        return reason
    if x.dtype == torch.float32:
        return "x is torch.float32, and it takes float16 and bfloat16"
    return "" if x.device == weight.words.device else f"x is on {x.device} and the weight on {weight.words.device}"


def w4a16_linear(
    x: torch.Tensor, weight: Int4Tiles, bias: torch.Tensor | None = None, *, num_splits: int | None = None
) -> torch.Tensor:
    """As `kernels.reference.w4a16_linear`, for float16 and bfloat16.

    ``num_splits``: programs that share a tile's inputs; None: as many as keep the GPU busy. The same number gives the
    same bits. Raises ValueError for what it cannot take (`refusal`).
    """
    require("w4a16_linear", refusal(x, weight, bias), x, weight.words, bias)
    (m, k), n = x.shape, weight.shape[0]
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    chosen = config(m, weight.group, capability(x.device))
    wanted = splits(m, n, k, chosen, _processors(x.device)) if num_splits is None else num_splits
    blocks = weight.words.shape[1]
    each = triton.cdiv(blocks, max(1, min(wanted, blocks)))
    count = triton.cdiv(blocks, each)
    split = count > 1
    sums = torch.empty((count, m, n), dtype=torch.float32, device=x.device) if split else out
    grid = (triton.cdiv(m, chosen.BLOCK_M) * triton.cdiv(n, chosen.BLOCK_N), count)
    _w4a16[grid](
        x, weight.words, weight.params, None if split else bias, sums, m, n, k, x.stride(0), blocks, each,
        max(1, weight.group // TILE_K), weight.params.shape[1],
        WHOLE_K=k % TILE_K == 0, SHARED=min(4, weight.group // WORDS), SPLIT=split, TILE_N=TILE_N, WORDS=WORDS,
        **chosen._asdict(),
    )  # fmt: skip
    if split:
        _add_splits[(triton.cdiv(m * n, ADD_BLOCK),)](
            sums, bias, out, m * n, n, SPLITS=count, BLOCK=ADD_BLOCK, num_warps=4
        )
    return out


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else SMS


def variants() -> list[Variant]:
    """bfloat16 with groups of 128 for one row, few, some and many; smaller groups, float16, and the second kernel."""
    kinds = [("bf16", rows, 4) for rows in (1, 16, 32, 64, 4096)]
    kinds += [("bf16", rows, shared) for rows in (16, 4096) for shared in (1, 2)]
    kinds += [("fp16", rows, 4) for rows in (16, 4096)]
    chosen_on: dict[tuple[str, int, int, Config], list[str]] = {}
    for dtype, rows, shared in kinds:
        for arch in ARCHS:
            chosen = config(rows, WORDS * shared, int(arch[3:]))
            chosen_on.setdefault((dtype, rows, shared, chosen), []).append(arch)
    return [_variant(*kind, tuple(archs)) for kind, archs in chosen_on.items()] + [_adding()]


def _variant(dtype: str, rows: int, shared: int, chosen: Config, archs: tuple[str, ...]) -> Variant:
    """Few rows are split, many are not."""
    tile = chosen._asdict()
    warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
    units = {"sm_90": "wgmma", "sm_100": "tcgen05"}
    split = rows <= 16
    known: dict[str, Any] = {"WHOLE_K": True, "SHARED": shared, "SPLIT": split, "group_blocks": 1}
    known |= ({"bias_ptr": None} if split else {}) | ({"m": 1} if rows == 1 else {})
    sizes = ("m", "n", "k", "x_row", "blocks", "blocks_each", "padded_n")
    types = {"x_ptr": f"*{dtype}", "words_ptr": "*i16", "params_ptr": "*i32", "bias_ptr": f"*{dtype}"}
    types |= {"out_ptr": "*fp32" if split else f"*{dtype}", **dict.fromkeys(sizes, "i32")}
    signature = {name: kind for name, kind in types.items() if name not in known}
    aligned = tuple(name for name in signature if name.endswith("_ptr"))
    return Variant(
        name=f"{dtype}-{rows}-rows-g{WORDS * shared}-{chosen.BLOCK_M}x{chosen.BLOCK_N}",
        kernel=_w4a16,
        signature=signature,
        constexprs={**known, **tile, "TILE_N": TILE_N, "WORDS": WORDS},
        divisible_by_16=(*aligned, "n", "k", "x_row", "padded_n"),
        num_warps=warps,
        num_stages=stages,
        archs=archs,
        wants=("mma", *(units[arch] for arch in archs if arch in units), "cp.async", "ldg.128"),
        most_registers=REGISTERS if split else None,
    )


def _adding() -> Variant:
    return Variant(
        name="add-4-splits",
        kernel=_add_splits,
        signature={"partial_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "count": "i32", "n": "i32"},
        constexprs={"SPLITS": 4, "BLOCK": ADD_BLOCK},
        divisible_by_16=("partial_ptr", "bias_ptr", "out_ptr", "count", "n"),
        num_warps=4,
        wants=("ldg.128",),
    )
