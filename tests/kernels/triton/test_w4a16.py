"""The W4A16 product: against float64 from the numbers themselves, in ragged shapes, all groups, few rows to many."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels.reference.int4_tiles import TILE_K
from kernels.triton import w4a16
from kernels.triton.interpreter import interpreting
from kernels.triton.traffic import counting
from tests.kernels.triton.rules import drawn
from tests.kernels.triton.w4a16_cases import check, each_input_by_itself, made

F16, BF16 = torch.float16, torch.bfloat16
GROUPS = (-1, 32, 64, 128, 256)


@pytest.mark.gpu_quick
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_each_weight_comes_out_to_the_last_bit(group: int, dtype: torch.dtype, device: str) -> None:
    """Inputs that are no whole tiles, groups that do not divide them, outputs that are no whole tiles."""
    for out, into, zeros, order in ((70, 160, True, False), (30, 288, dtype is BF16, True)):
        each_input_by_itself(made(out, into, group, zeros=zeros, order=order, device=device), dtype)


@pytest.mark.gpu_quick
@pytest.mark.parametrize(
    ("rows", "out", "into", "group", "zeros", "order", "dtype", "bias"),
    [
        (1, 64, 128, 128, True, False, BF16, False),
        (1, 200, 576, 64, True, False, BF16, True),
        (2, 130, 576, 32, False, True, F16, True),
        (16, 64, 1152, -1, True, False, BF16, False),
        (17, 70, 576, 128, True, True, F16, False),
        (33, 129, 320, 64, False, False, BF16, True),
        (64, 65, 256, 256, True, False, F16, True),
        (65, 128, 256, 128, True, False, BF16, False),
        (130, 190, 576, 32, True, True, BF16, True),
        (130, 150, 384, 128, False, False, F16, True),
        (40, 40, 40, -1, True, False, F16, True),
        (3, 1, 32, 32, True, False, BF16, False),
        (1, 1, 1024, 128, True, False, BF16, True),  # split, and all sizes that Triton takes for constants are 1
        (0, 64, 128, 128, True, False, BF16, True),
    ],
)
def test_products(
    rows: int, out: int, into: int, group: int, zeros: bool, order: bool, dtype: torch.dtype, bias: bool, device: str
) -> None:
    check(rows, made(out, into, group, zeros=zeros, order=order, device=device), dtype, bias=bias)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_the_whole_grid(group: int, dtype: torch.dtype, device: str) -> None:
    sizes = itertools.product((1, 2, 15, 16, 17, 31, 64, 65, 130), ((64, 128), (100, 352), (193, 576)))
    for seed, (rows, (out, into)) in enumerate(sizes):
        one = made(out, into, group, zeros=seed % 2 == 0, order=seed % 3 == 0, seed=seed, device=device)
        for splits in (None, 1, 3):
            check(rows, one, dtype, bias=seed % 5 == 0, splits=splits, seed=seed)


@pytest.mark.gpu_quick
@pytest.mark.usefixtures("no_clean_memory")
@pytest.mark.parametrize("rows", [1, 20])
def test_split_inputs(rows: int, device: str) -> None:
    """Any number of splits is right, those that would be empty included, and gives the same bits each time."""
    one = made(40, 9 * TILE_K - 32, 64, device=device)
    for splits in range(1, 9):
        found = [check(rows, one, BF16, bias=True, splits=splits) for _ in range(2)]
        assert torch.equal(*found)


@pytest.mark.gpu_quick
def test_a_row_does_not_see_its_neighbours(device: str) -> None:
    one = made(100, 576, 64, device=device)
    x = drawn(20, 576, dtype=BF16).to(device)
    clean = w4a16.w4a16_linear(x, one.tiles, num_splits=2)
    x[7] = float("nan")
    x[9, 500] = float("inf")
    dirty = w4a16.w4a16_linear(x, one.tiles, num_splits=2)
    others = [row for row in range(20) if row not in (7, 9)]
    assert dirty[7].isnan().all() and not dirty[9].isfinite().any() and torch.equal(dirty[others], clean[others])


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_every_tile_that_a_gpu_takes(arch: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w4a16, "capability", lambda device: arch)
    for rows, group in ((5, 128), (30, 128), (60, 128), (140, 128), (70, 32)):
        check(rows, made(70, 160, group, device=device), BF16)


def test_as_many_splits_as_keep_a_gpu_busy() -> None:
    """Never so many that a split has less than four tiles or sums take more than twice the weights' bytes, and none
    where tiles are enough."""
    few = w4a16.config(1, 128, 90)
    assert w4a16.splits(1, 4096, 4096, few, 132) == 5
    assert w4a16.splits(1, 1024, 4096, few, 132) == 8
    assert w4a16.splits(1, 1024, 1024, few, 132) == 2
    assert w4a16.splits(1, 1024, 256, few, 132) == 1
    assert w4a16.splits(1, 11008, 4096, few, 132) == 1
    many = w4a16.config(256, 128, 90)
    assert [w4a16.splits(rows, 1024, 4096, many, 132) for rows in (128, 256, 1024)] == [4, 2, 1]
    assert w4a16.splits(4096, 4096, 4096, w4a16.config(4096, 128, 90), 132) == 1


@pytest.mark.skipif(not interpreting(), reason="bytes are counted in the interpreter")
@pytest.mark.parametrize(("group", "bits"), [(128, 4.25), (64, 4.5), (32, 5.0), (-1, 4.0 + 32 / 1024)])
def test_weights_are_read_once_in_so_many_bits(group: int, bits: float, device: str) -> None:
    """A step of up to 64 rows reads each weight once, and asks for words once; the splits' sums go to and fro."""
    rows, out, into, splits = 16, 256, 1024, 2
    one, x = made(out, into, group, device=device), drawn(16, 1024, dtype=BF16).to(device)
    assert 8 * one.tiles.num_bytes == bits * out * into
    with counting() as launches:
        w4a16.w4a16_linear(x, one.tiles, num_splits=1)
        w4a16.w4a16_linear(x, one.tiles, num_splits=splits)
    whole, split, added = launches
    weights, activations, result = one.tiles.num_bytes, x.nbytes, 2 * rows * out
    assert (whole.read, whole.written) == (weights + activations, result)
    assert (split.read, split.written) == (weights + activations, 4 * splits * rows * out)
    assert (added.read, added.written) == (split.written, result)
    scales = 4 * out * max(into // TILE_K, into // one.tiles.group)
    assert whole.asked == one.tiles.words.nbytes + scales + out // 64 * activations, "words are asked for once"


def test_what_it_cannot_take_is_refused(device: str) -> None:
    one = made(64, 128).tiles
    half = torch.ones(2, 128, dtype=F16)
    for x, bias, named in (
        (torch.ones(2, 64), None, r"x and bias \[\[2, 64\]\] do not fit a weight \[64, 128\]"),
        (torch.ones(2, 128), torch.ones(63), r"\[\[2, 128\], \[63\]\] do not fit"),
        (half.double(), None, "x is torch.float64"),
        (half.float(), None, "x is torch.float32, and it takes float16 and bfloat16"),
        (half.T.contiguous().T, None, "the last numbers of x do not lie side by side"),
        (half.to("meta"), None, "x is on meta and the weight on cpu"),
    ):
        with pytest.raises(ValueError, match=named):
            w4a16.w4a16_linear(x, one, bias)
