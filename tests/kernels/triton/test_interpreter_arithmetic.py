"""bf16 and fp8 in interpreted kernels against torch, bit by bit; products of matrices against float64."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import triton
import triton.language as tl

from kernels.triton.interpreter import interpreting
from tests.kernels.triton.test_interpreter_casts import all_halfs, same

pytestmark = pytest.mark.skipif(not interpreting(), reason="the kernels are compiled: there is no interpreter to test")


@triton.jit
def _pairs(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = (x / y).to(x.dtype)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "where":
        z = tl.where(x > y, x, y)
    elif OP == "clamp":
        z = tl.clamp(x, -y, y)
    elif OP == "scalar":
        z = (x - 136.0) * 0.5 + 1
    elif OP == "neg":
        z = -x
    else:
        z = tl.abs(x)
    tl.store(out_ptr + i, z)


def _larger(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The other one where one is NaN; torch.fmax gives NaN for a signalling one."""
    return torch.where((x > y) | y.isnan(), x, y)


EXPECTED = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "maximum": _larger,
    "minimum": lambda x, y: -_larger(-x, -y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: -_larger(-_larger(x, -y), -y),
    "scalar": lambda x, y: (x - 136.0) * 0.5 + 1,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
}


@pytest.mark.parametrize("op", EXPECTED)
def test_bf16_operations_are_torchs_bit_by_bit(op: str) -> None:
    """Every bf16 value meets a drawn one; clamp asks for a range that is one."""
    x = all_halfs(torch.bfloat16)
    drawn = torch.randint(0, 65536, (65536,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    y = drawn.to(torch.int16).view(torch.bfloat16)
    # A second half of like sizes, where sums neither vanish nor absorb.
    y = torch.where(drawn % 2 == 0, y, (x.float() * (1 + (drawn % 97) / 50)).to(torch.bfloat16))
    if op == "clamp":
        y = torch.where(y.isnan(), torch.ones_like(y), y.abs())
    out = torch.zeros_like(x)
    _pairs[(1,)](x, y, out, OP=op, BLOCK=65536)
    expected = EXPECTED[op](x, y)
    if op in ("maximum", "minimum", "where", "clamp", "neg"):  # which of 0 and −0 is not said (3.6: −x is 0 − x)
        out, expected = out + 0.0, expected + 0.0
    assert same(out, expected)


@triton.jit
def _fma(x_ptr, y_ptr, z_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.fma(tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24)], ids=str)
def test_fma_rounds_once(dtype: torch.dtype, bits: int) -> None:
    """Against exact fractions, also where the product is a tie and the addend, far smaller, decides."""
    generator = torch.Generator().manual_seed(8)
    x, y, z = ((1 + torch.rand(512, generator=generator)).to(dtype) for _ in range(3))
    x[:256] = 1 + 2.0 ** (1 - bits) * torch.randint(0, 2 ** (bits - 1), (256,), generator=generator).to(dtype)
    y[:256] = 1.5
    z *= torch.tensor([-(2.0**-12), 1.0, -1.0, 2.0**-12]).repeat(128).to(dtype)
    out = torch.zeros(512, dtype=dtype)
    _fma[(1,)](x, y, z, out, BLOCK=512)
    for got, *factors in zip(out.tolist(), x.tolist(), y.tolist(), z.tolist(), strict=True):
        a, b, c = map(Fraction, factors)
        exact = a * b + c
        grid = Fraction(2) ** (math.floor(math.log2(abs(exact))) + 1 - bits) if exact else Fraction(1)
        assert got == float(round(exact / grid) * grid)  # Python rounds a fraction to even


@triton.jit
def _reduce(x_ptr, out_ptr, index_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    x = tl.load(x_ptr + row[:, None] * COLS + col[None, :])
    tl.store(out_ptr + row, tl.max(x, 1).to(tl.float32))
    tl.store(out_ptr + ROWS + row, tl.min(x, 1).to(tl.float32))
    tl.store(out_ptr + 2 * ROWS + row, tl.sum(x, 1).to(tl.float32))
    tl.store(out_ptr + 3 * ROWS + row, tl.max(tl.cumsum(x, 1), 1).to(tl.float32))
    tl.store(index_ptr + row, tl.argmax(x, 1))
    tl.store(index_ptr + ROWS + row, tl.argmin(x, 1))


def reduced(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = x.shape
    out, index = torch.zeros(4, rows), torch.zeros(2, rows, dtype=torch.int32)
    _reduce[(1,)](x, out, index, ROWS=rows, COLS=cols)
    return out, index


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_reductions(dtype: torch.dtype) -> None:
    x = torch.randint(1, 64, (4, 16), generator=torch.Generator().manual_seed(2)).to(dtype)
    x[:, 3], x[:, 9], x[:, 11], x[:, 12] = 100, 100, -7, -7
    out, index = reduced(x)
    wide = x.float()
    assert out[0].tolist() == [100] * 4 and out[1].tolist() == [-7] * 4
    bound = {torch.bfloat16: 2**-8, torch.float16: 0, torch.float32: 0}[dtype]  # whole numbers below 1024
    torch.testing.assert_close(out[2], wide.sum(1), rtol=4 * bound, atol=0)
    torch.testing.assert_close(out[3], wide.cumsum(1).max(1).values, rtol=16 * bound, atol=0)
    assert index.tolist() == [[3] * 4, [11] * 4]  # of equal values the first


def test_each_sum_of_a_bf16_reduction_is_rounded() -> None:
    """256 + 1 is 256 again, so a tree gives 256 + 2 + 2 + 2; rounded only at the end it would be 264."""
    out, _ = reduced(torch.tensor([[256.0] + [1.0] * 7]).bfloat16())
    assert out[2].item() == 262


@triton.jit
def _prefixes(x_ptr, sums_ptr, products_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(sums_ptr + i, tl.cumsum(x, 0))
    tl.store(products_ptr + i, tl.cumprod(x, 0))


def test_prefixes_of_bf16() -> None:
    x = torch.tensor([1.5, -2.0, 0.25, 4.0]).bfloat16()
    sums, products = torch.zeros_like(x), torch.zeros_like(x)
    _prefixes[(1,)](x, sums, products, BLOCK=4)
    assert sums.tolist() == [1.5, -0.5, -0.25, 3.75] and products.tolist() == [1.5, -3.0, -0.75, -3.0]


def test_nan_alone_does_not_raise_and_among_numbers_is_passed_over(recwarn) -> None:
    x = torch.full((2, 4), torch.nan)
    x[1, 1:3] = torch.tensor([-torch.inf, -5.0])
    out, index = reduced(x)
    assert out[:2, 0].isnan().all() and out[0, 1] == -5 and out[1, 1] == -torch.inf
    assert index[:, 0].tolist() == [0, 0] and index[:, 1].tolist() == [2, 1]
    assert not recwarn.list


@triton.jit
def _add_atomically(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + i // 4, tl.load(x_ptr + i), mask=i < BLOCK - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_atomic_addition_rounds_each_sum(dtype: torch.dtype) -> None:
    x = torch.tensor([256.0, 1, 1, 1, 2, 4, 8, 16]).to(dtype)
    out = torch.zeros(2, dtype=dtype)
    _add_atomically[(1,)](x, out, BLOCK=8)
    assert out.tolist() == [256.0 if dtype == torch.bfloat16 else 259.0, 14.0]  # 256 + 1 rounds back to 256 in bf16


@triton.jit
def _dot(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    c = tl.load(c_ptr + m[:, None] * N + n[None, :])
    c = tl.dot(a, b, acc=c, input_precision=PRECISION, out_dtype=c.dtype)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dotted(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    got = c.clone()
    _dot[(1,)](a, b, got, M=a.shape[0], N=b.shape[1], K=a.shape[1], PRECISION=precision)
    return got


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_dot_stays_within_the_bound_of_float32_sums(dtype: torch.dtype) -> None:
    a, b, c = drawn(16, 64, seed=3, dtype=dtype), drawn(64, 32, seed=4, dtype=dtype), drawn(16, 32, seed=5)
    exact = a.double() @ b.double() + c.double()
    bound = 65 * 2**-24 * (a.double().abs() @ b.double().abs() + c.double().abs())
    assert ((dotted(a, b, c).double() - exact).abs() <= bound).all()


def test_dot_of_float32_is_tf32_unless_told() -> None:
    a, b, c = drawn(16, 64, seed=3), drawn(64, 32, seed=4), torch.zeros(16, 32)
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (dotted(a, b, c, "tf32").double() - exact).abs()
    assert (error <= (2**-10 + 2**-16) * sizes).all() and error.max() > 100 * (dotted(a, b, c) - exact).abs().max()


def test_dot_in_fp16_rounds_its_result_once() -> None:
    a, b, c = (drawn(*shape, seed=6, dtype=torch.float16) for shape in ((16, 32), (32, 16), (16, 16)))
    assert same(dotted(a, b, c), (a.float() @ b.float() + c.float()).half())


def test_dot_of_int8_is_exact() -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randint(-128, 128, (16, 64), generator=generator, dtype=torch.int8)
    b = torch.randint(-128, 128, (64, 32), generator=generator, dtype=torch.int8)
    c = torch.randint(-(2**30), 2**30, (16, 32), generator=generator, dtype=torch.int32)
    assert torch.equal(dotted(a, b, c), a.int() @ b.int() + c)


@pytest.mark.parametrize(("dtype", "k"), [(torch.float16, 8), (torch.float8_e4m3fn, 16)], ids=["fp16", "fp8"])
def test_a_dot_too_small_for_a_gpu_is_refused(dtype: torch.dtype, k: int) -> None:
    with pytest.raises(Exception, match="K >= "):
        dotted(drawn(16, k, seed=0, dtype=dtype), drawn(k, 16, seed=0, dtype=dtype), torch.zeros(16, 16))
