"""Bugs put into W4A16 on purpose, into how weights are laid out and into the kernel: each must be caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.reference import int4_tiles
from kernels.triton import w4a16
from kernels.triton.interpreter import interpreting
from tests.kernels.triton import w4a16_cases
from tests.kernels.triton.planted import Bug, is_caught
from tests.kernels.triton.w4a16_cases import check, each_input_by_itself

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_clean_memory"),
    pytest.mark.skipif(not interpreting(), reason="compiled kernels do not see names that change"),
]

BF16, F16 = torch.bfloat16, torch.float16
USERS = (int4_tiles, w4a16, w4a16_cases)
"""Who calls what a bug may replace."""


def one_by_one(device: str) -> None:
    """Two tiles of outputs, inputs that are no whole tiles, all sizes of groups; both types."""
    for group, dtype in ((32, F16), (64, BF16), (256, BF16)):
        each_input_by_itself(w4a16_cases.made(70, 288, group, device=device), dtype)


def symmetric(device: str) -> None:
    each_input_by_itself(w4a16_cases.made(20, 64, 32, zeros=False, device=device), BF16)


def ordered(device: str) -> None:
    check(3, w4a16_cases.made(20, 160, 32, order=True, device=device), BF16)


def split(device: str) -> None:
    one = w4a16_cases.made(70, 640, 64, device=device)
    for splits in (2, 3, 4):
        check(5, one, BF16, bias=True, splits=splits)


def many(device: str) -> None:
    check(130, w4a16_cases.made(140, 160, 64, device=device), BF16, bias=True)


BUGS = {
    "nibbles from the highest on": Bug(
        w4a16, "words >> 4 * (part * SHARED + one)", "words >> 4 * (3 - part * SHARED - one)", one_by_one
    ),
    "the sign of a word's highest four bits": Bug(w4a16, "q = bits & 15", "q = bits & -1", one_by_one),
    "a group too far": Bug(
        w4a16, "group = block * (4 // SHARED) + part", "group = block * (4 // SHARED) + part + (block > 0)", one_by_one
    ),
    "one scale for all of a tile": Bug(
        w4a16, "group = block * (4 // SHARED) + part", "group = block * (4 // SHARED)", one_by_one
    ),
    "each tile a group": Bug(w4a16, "group = block // group_blocks", "group = block", one_by_one),
    "a zero point is added": Bug(w4a16, "number - (zero + 128)", "number - (128 - zero)", one_by_one),
    "a zero point of float16 is added": Bug(w4a16, "number - (zero + 1024)", "number - (1024 - zero)", one_by_one),
    "a zero point too low, as GPTQ stores it": Bug(int4_tiles, "else zero.int()", "else zero.int() - 1", one_by_one),
    "the middle is 7": Bug(int4_tiles, "full_like(low, 8)", "full_like(low, 7)", symmetric),
    "the scale's bits are signed": Bug(
        int4_tiles, "view(torch.int16).int() & 0xFFFF", "view(torch.int16).int() | 0x8000", one_by_one
    ),
    "words of 16 inputs": Bug(
        w4a16, "skip = (part * SHARED + one) * WORDS", "skip = (part * SHARED + one) * 16", one_by_one
    ),
    "no end of the inputs": Bug(w4a16, "mask=inside & (word < left)[:, None]", "mask=inside", one_by_one),
    "the second tile of outputs is the first": Bug(
        w4a16,
        "(outputs // TILE_N).to(tl.int64) * blocks + first",
        "(outputs // TILE_N).to(tl.int64) * 0 + first",
        one_by_one,
    ),
    "activations in their own order": Bug(w4a16, "x = x.index_select(1, weight.order)", "pass", ordered),
    "activations in the inverse order": Bug(
        w4a16, "index_select(1, weight.order)", "index_select(1, weight.order.argsort())", ordered
    ),
    "a split begins where the first does": Bug(w4a16, "* blocks + first) * piece", "* blocks) * piece", split),
    "a split goes on into the next": Bug(w4a16, "tl.minimum(first + blocks_each, blocks)", "blocks", split),
    "the last split is lost": Bug(w4a16, "tl.static_range(1, SPLITS)", "tl.static_range(1, SPLITS - 1)", split),
    "no bias where inputs are split": Bug(w4a16, "sums, bias, out, m * n", "sums, None, out, m * n", split),
    "sums of a group go on in the next": Bug(
        w4a16,
        "            product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)\n",
        "            product = total\n",
        one_by_one,
    ),
    "rows and outputs change places": Bug(
        w4a16, "tl.int64)[None, :] * n + outputs[:, None]", "tl.int64)[None, :] + outputs[:, None] * m", many
    ),
    "outputs past the end are written": Bug(w4a16, "mask = inside & (outputs[:, None] < n)", "mask = inside", many),
}


@pytest.mark.parametrize("name", BUGS)
def test_it_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    assert is_caught(BUGS[name], USERS, tmp_path, monkeypatch, device), "the check passes"


@pytest.mark.parametrize("one", [one_by_one, symmetric, ordered, split, many])
def test_without_a_bug_the_checks_pass(one: Callable[[str], None], device: str) -> None:
    one(device)
