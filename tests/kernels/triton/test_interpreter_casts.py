"""Casts in interpreted kernels against torch's, bit by bit, and the formats' own arithmetic against a definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.triton.interpreter import interpreting
from kernels.triton.interpreter.formats import BF16, E2M1_VALUES, E4M3, E5M2, FP16, decode, e8m0, encode, unpack_e2m1

pytestmark = pytest.mark.skipif(not interpreting(), reason="the kernels are compiled: there is no interpreter to test")

FP8 = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@triton.jit
def _cast(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i).to(y_ptr.dtype.element_ty))


@triton.jit
def _cast_rtz(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i).to(y_ptr.dtype.element_ty, fp_downcast_rounding="rtz"))


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.zeros(x.shape, dtype=dtype)
    _cast[(1,)](x, y, BLOCK=x.numel())
    return y


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bits, except that every NaN is as good as another."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    nan = got.float().isnan()
    return torch.equal(nan, expected.float().isnan()) and torch.equal(got.view(bits)[~nan], expected.view(bits)[~nan])


def all_halfs(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_every_half_to_fp8(half: torch.dtype, dtype: torch.dtype) -> None:
    x = all_halfs(half)
    largest = FP8[dtype]
    assert same(cast(x, dtype), x.float().clamp(-largest, largest).to(dtype))


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16])
def test_every_fp8_code_to_a_wider_type_and_back(dtype: torch.dtype, wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    widened = cast(codes, wide)
    assert same(widened, codes.to(wide))
    finite = widened.float().isfinite()  # e5m2's infinities saturate on the way back
    assert same(cast(widened, dtype)[finite], codes[finite])


def test_every_half_to_the_other_half() -> None:
    halfs, brains = all_halfs(torch.float16), all_halfs(torch.bfloat16)
    assert same(cast(halfs, torch.bfloat16), halfs.to(torch.bfloat16))
    assert same(cast(brains, torch.float16), brains.to(torch.float16))
    assert same(cast(brains, torch.float32), brains.float())
    assert same(cast(halfs, torch.float32), halfs.float())


def test_float32_to_bf16_at_every_upper_half_and_around_each_tie() -> None:
    upper = torch.arange(65536, dtype=torch.int64) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        bits = upper + lower
        x = torch.where(bits < 2**31, bits, bits - 2**32).to(torch.int32).view(torch.float32)
        assert same(cast(x, torch.bfloat16), x.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", FP8)
def test_float32_to_fp8_beside_and_on_every_border(dtype: torch.dtype) -> None:
    """Between neighbouring codes lies a tie: there, and one float32 below and above it, rounding must be right."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    values = codes[codes.isfinite()].sort().values
    ties = (values[1:] + values[:-1]) / 2
    near = torch.cat([ties, ties.nextafter(torch.tensor(torch.inf)), ties.nextafter(torch.tensor(-torch.inf))])
    extreme = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 1e-40, -1e-40, 464.0, 464.01, 500.0, 126.24])
    x = torch.cat([near, extreme, torch.zeros(1024)])[:1024]
    largest = FP8[dtype]
    assert same(cast(x, dtype), x.clamp(-largest, largest).to(dtype))


def test_float64_to_bf16_is_rounded_once() -> None:
    """Just above a tie between two bf16 values: by way of float32 it would become the tie and round to even, down."""
    x = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8 - 2**-40, -1 - 2**-8 - 2**-40], dtype=torch.float64)
    assert cast(x, torch.bfloat16).tolist() == [1 + 2**-7, 1.0, 1 + 2**-7, -1 - 2**-7]


def test_whole_numbers_to_bf16() -> None:
    x = torch.arange(-512, 512, dtype=torch.int32) * 37
    assert same(cast(x, torch.bfloat16), x.to(torch.bfloat16))
    assert torch.equal(
        cast(torch.arange(256, dtype=torch.int32).bfloat16(), torch.int32), torch.arange(256).bfloat16().int()
    )


def test_cutting_off_on_request() -> None:
    x = all_halfs(torch.float16).float()
    x = x[x.isfinite()][:32768]
    cut = (x.view(torch.int32) & -65536).view(torch.float32)
    for dtype, expected in ((torch.bfloat16, cut.to(torch.bfloat16)), (torch.float16, x.to(torch.float16))):
        y = torch.zeros(x.shape, dtype=dtype)
        _cast_rtz[(1,)](x, y, BLOCK=x.numel())
        assert same(y, expected)


def by_definition(x: float, mantissa: int, smallest_normal: int, largest: float) -> float:
    """The multiple of the grid next to x, chosen among all of them by distance, the even one on a tie."""
    grid = 2.0 ** max(int(np.floor(np.log2(abs(x)))) - mantissa, smallest_normal - mantissa) if x else 1.0
    below = int(np.floor(x / grid))
    step = min((below, below + 1), key=lambda k: (abs(k * grid - x), k % 2))
    return float(np.clip(step * grid, -largest, largest))


@pytest.mark.parametrize("format", [E4M3, E5M2, FP16, BF16], ids=lambda format: format.name)
def test_encode_takes_the_nearest_number_of_the_format(format) -> None:
    generator = np.random.default_rng(0)
    x = generator.choice([-1, 1], 2000) * 2.0 ** generator.uniform(
        format.min_exponent - 4, np.log2(format.largest) - 1, 2000
    )
    got = encode(x, format)
    numbers = got.view(np.float16).astype(np.float64) if format is FP16 else decode(got, format).astype(np.float64)
    expected = [by_definition(each, format.mantissa, format.min_exponent, format.largest) for each in x]
    assert numbers.tolist() == expected
    assert np.array_equal(encode(x.astype(np.float32), format), encode(x.astype(np.float32).astype(np.float64), format))


def test_scales_and_fp4_say_what_the_standard_says() -> None:
    assert e8m0(np.array([0, 1, 127, 128, 254], dtype=np.uint8)).tolist() == [2.0**-127, 2.0**-126, 1, 2, 2.0**127]
    assert np.isnan(e8m0(np.array([255], dtype=np.uint8))[0])
    assert E2M1_VALUES.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    packed = np.array([[0x21, 0xF7]], dtype=np.uint8)
    assert unpack_e2m1(packed, -1).tolist() == [[0.5, 1.0, 6.0, -6.0]]
    assert unpack_e2m1(packed, -2).tolist() == [[0.5, 6.0], [1.0, -6.0]]
