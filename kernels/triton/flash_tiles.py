"""The configuration table of FlashAttention: a function of the chip, the head size, the type, and how K and V are read.

A tile of 128 rows needs eight warps: with four, a thread would hold more of the scores and of the result than it has
registers; on 90 eight also make two warpgroups, each with the 64 rows that wgmma wants. Two things bound the block of
keys: those registers (the result alone is ``BLOCK_M · padded`` float32 values over all threads), and shared memory,
which holds ``num_stages`` blocks of keys and of values ahead of their use.
`variants` in `kernels.triton.flash_attention` lists what these give, and `kernels.inspect` shows that nothing spills.
"""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    block_m: int
    """Packed rows (query token, head of the group) of a program."""
    block_n: int
    """Keys of a block."""
    num_warps: int
    num_stages: int
    """Blocks of keys and values that are under way at once."""


LITTLE_SHARED_MEMORY = (86, 89, 120, 121)
"""99 KiB for a program (GeForce and the like), where 80 has 163 and 90 and 100 have 227."""
DECODE_REGISTERS = 128
"""Of a thread at most, where a program decodes."""
INTERPRETED = Tiles(64, 64, 4, 1)
"""In the interpreter an operation costs much and an element little."""


def tiles(arch: int | None, padded: int, itemsize: int, descriptors: bool, windowed: bool = False) -> Tiles:
    """arch: compute capability times ten, None for the interpreter; padded: the head size as a power of two, at least
    16; itemsize: bytes of an element; descriptors: whether K and V are read through TMA descriptors (from 90 on).
    windowed: one loop more, with masks; at 256 it spills unless blocks are narrower.
    """
    if arch is None:
        return INTERPRETED
    if itemsize == 4:
        # Full float32 products are not made by matrix instructions but by threads, which hold what they multiply.
        return Tiles(32, 32, 4, 2) if padded <= 64 else Tiles(32, 16, 4, 1)
    if arch in LITTLE_SHARED_MEMORY:
        return Tiles(128, 64 if padded <= 64 else 32, 8, 2) if padded <= 128 else Tiles(64, 32, 8, 2)
    if descriptors:
        return Tiles(128, 128 if padded <= 128 else 32 if windowed or arch >= 100 else 64, 8, 2)
    if padded <= 128:
        return Tiles(128, 64, 8, 3)
    return Tiles(64, 32 if windowed else 64, 8, 2) if arch < 90 else Tiles(128, 32, 8, 2)


def paged(chosen: Tiles) -> Tiles:
    """The same where keys lie in pages: a load whose address another load gives takes two stages instead of one, and
    an address a key takes registers."""
    return chosen._replace(num_stages=2 * chosen.num_stages - 1, num_warps=8)


def decode_tiles(arch: int | None, padded: int, itemsize: int, rows: int) -> Tiles:
    """For a program that has few rows, ``rows``, and waits for keys and values in pages.

    Memory is what takes the time, so two blocks are under way while one is used, and eight warps hold what that takes
    within `DECODE_REGISTERS`, which leaves an SM two such programs. Sixteen rows are the least of a matrix instruction,
    64 those of wgmma: with more than 16 (shared heads, MQA) the product counts too, and blocks are half as long.
    """
    block_m = 16 if rows <= 16 else 64
    if arch is None:
        return Tiles(block_m, 64, 4, 1)
    if itemsize == 4:
        return Tiles(16, 32 if padded <= 128 else 16, 8, 2 if padded <= 128 else 1)
    if arch in LITTLE_SHARED_MEMORY:
        return Tiles(block_m, 32 if padded <= 128 else 16, 8, 3)
    block_n = 64 if padded <= 128 else 32
    if block_m == 64:
        block_n = 32 if arch >= 90 else block_n // 2
    return Tiles(block_m, block_n, 8, 5)
