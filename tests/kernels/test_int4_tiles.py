"""4-bit weights in tiles: what the bits mean, said once more number by number, and what the product is."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.reference.int4_tiles import Int4Tiles, dequantize, int4_tiles, tiles_of
from kernels.reference.weights import Weight, pack, stack, unpack, weight_of_numbers
from tests.kernels.weight_formats import drawn, random_weight


def number(tiles: Int4Tiles, output: int, place: int) -> float:
    """The number of an output at a place among the inputs, from the bits."""
    tile, within = divmod(place, 128)
    word = int(tiles.words[output // 64, tile, output % 64, within % 32]) & 0xFFFF
    bits = int(tiles.params[place // tiles.group, output]) & 0xFFFFFFFF
    scale = torch.tensor([bits & 0xFFFF], dtype=torch.int32).to(torch.int16).view(torch.float16)
    return ((word >> 4 * (within // 32) & 15) - (bits >> 16)) * float(scale)


@pytest.mark.parametrize("group", [-1, 32, 64, 96, 128, 256, 384])
@pytest.mark.parametrize(("out", "into"), [(1, 32), (67, 160), (130, 416)])
def test_bits_are_numbers(out: int, into: int, group: int) -> None:
    draw = torch.Generator().manual_seed(into)
    groups = 1 if group == -1 else -(-into // group)
    q = torch.randint(0, 16, (out, into), generator=draw)
    scale, zero = torch.rand(out, groups, generator=draw).half(), torch.randint(0, 17, (out, groups), generator=draw)
    order = torch.randperm(into, generator=draw)
    plain, shuffled = int4_tiles(q, scale, zero, group), int4_tiles(q, scale, zero, group, order)
    matrix, moved = dequantize(plain), dequantize(shuffled)
    for output in {0, out // 2, out - 1}:
        for place in range(into):
            at = 0 if group == -1 else place // group
            expected = float((int(q[output, place]) - int(zero[output, at])) * scale[output, at].float())
            assert number(plain, output, place) == float(matrix[output, place]) == expected
            assert float(moved[output, order[place]]) == expected
    assert (plain.params & 0xFFFF)[:, out:].eq(0).all(), "what is filled up counts for nothing"


def test_without_zero_points_the_middle_is_eight() -> None:
    q = torch.arange(16).repeat(3, 4)
    assert torch.equal(dequantize(int4_tiles(q, torch.ones(3, 2), None, 32)), q.float() - 8)


@pytest.mark.parametrize("group", [32, 64])
def test_a_weight_of_the_format_uint4(group: int) -> None:
    weight = random_weight(f"uint4-{group}", 70, 192)
    # The definition of the format adds a rounded offset; a tile's numbers are products, rounded once.
    torch.testing.assert_close(dequantize(tiles_of(weight)), unpack(weight), rtol=1e-6, atol=1e-6)
    assert tiles_of(weight).group == group


def test_one_group_for_all_inputs_stays_one() -> None:
    q, one = torch.randint(0, 16, (4, 96)), torch.ones(4, 1)
    tiles = tiles_of(weight_of_numbers("uint4", q, one, one, 96))
    assert len(tiles.params) == 1 and torch.equal(dequantize(tiles), q.float() - 1)


def test_bits_of_a_weight() -> None:
    bits = {}
    for group in (-1, 32, 64, 128):
        groups = 1 if group == -1 else 1024 // group
        tiles = int4_tiles(torch.zeros(128, 1024), torch.ones(128, groups), None, group)
        bits[group] = 8 * tiles.num_bytes / (128 * 1024)
    assert bits == {-1: 4 + 32 / 1024, 32: 5.0, 64: 4.5, 128: 4.25}


def ordered(out: int, order: torch.Tensor, seed: int = 0) -> Weight:
    draw = torch.Generator().manual_seed(seed)
    q = torch.randint(0, 16, (out, len(order)), generator=draw)
    scale = torch.rand(out, len(order) // 32, generator=draw).half()
    return weight_of_numbers("uint4", q, scale, torch.full_like(scale, 7), 32, order)


def test_columns_in_another_order() -> None:
    """A weight whose columns were sorted by group is the same weight; it stacks with others of the same order only."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    one, two = ordered(5, order), ordered(3, order, seed=1)
    sorted_one = Weight(one.format, one.shape, one.data, one.scales, one.group)
    assert torch.equal(unpack(one)[:, order], unpack(sorted_one)) and not torch.equal(unpack(one), unpack(sorted_one))
    both = stack([one, two])
    assert both is not None and torch.equal(unpack(both), torch.cat([unpack(one), unpack(two)]))
    assert stack([one, ordered(3, order.flip(0))]) is None and stack([one, sorted_one]) is None
    x = drawn(4, 64)
    found = kernels.linear(x, one, maker="reference")
    torch.testing.assert_close(found, x @ unpack(one).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("group", [32, 64])
def test_floats_are_rounded_to_the_nearest_number_with_a_whole_zero_point(group: int) -> None:
    matrix = drawn(16, 128) + torch.linspace(-3, 3, 16)[:, None]
    weight = pack(matrix, "uint4", group)
    assert weight.scales is not None
    scale, zero = weight.scales.float().unbind(-1)
    assert torch.equal(zero, zero.round()) and zero.min() >= 0 and zero.max() <= 15
    error = (unpack(weight) - matrix).reshape(16, -1, group).abs().amax(-1)
    assert (error <= scale * 1.01).all(), "half a step of the numbers, and half a step of the zero point"
    assert unpack(pack(torch.zeros(2, 64), "uint4", group)).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_product(dtype: torch.dtype) -> None:
    tiles = tiles_of(random_weight("uint4-32", 70, 96))
    x, bias = drawn(5, 96).to(dtype), drawn(70, seed=1)
    found = kernels.w4a16_linear(x, tiles, bias)
    assert found.dtype is dtype
    wide = x.double() @ dequantize(tiles).double().T + bias.double()
    torch.testing.assert_close(found.double(), wide, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("group", "groups", "named"),
    [
        (48, 2, "groups of 48 are no multiple of 32"),
        (0, 2, "groups of 0"),
        (64, 2, r"scales and zero points \[\[4, 2\], \[4, 2\]\] do not fit 4 × 64 in groups of 64"),
    ],
)
def test_what_does_not_fit_is_told(group: int, groups: int, named: str) -> None:
    scale = torch.ones(4, groups)
    with pytest.raises(ValueError, match=named):
        int4_tiles(torch.zeros(4, 64), scale, scale, group)
