"""`tl.dot_scaled` in the interpreter (missing in Triton 3.6) against its definition, element by element."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from kernels.triton.interpreter import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="the kernels are compiled: there is no interpreter to test")

M, N, K = 16, 16, 64


@triton.jit
def _dot_scaled(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr,
    A: tl.constexpr, B: tl.constexpr, A_ROWS: tl.constexpr, A_COLS: tl.constexpr, B_ROWS: tl.constexpr,
    B_COLS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, A_SCALED: tl.constexpr,
    A_K_PACK: tl.constexpr, B_K_PACK: tl.constexpr,
):  # fmt: skip
    m, n, g = tl.arange(0, M), tl.arange(0, N), tl.arange(0, GROUPS)
    a = tl.load(a_ptr + tl.arange(0, A_ROWS)[:, None] * A_COLS + tl.arange(0, A_COLS)[None, :])
    b = tl.load(b_ptr + tl.arange(0, B_ROWS)[:, None] * B_COLS + tl.arange(0, B_COLS)[None, :])
    b_scale = tl.load(b_scale_ptr + n[:, None] * GROUPS + g[None, :])
    c = tl.load(c_ptr + m[:, None] * N + n[None, :])
    if A_SCALED:
        a_scale = tl.load(a_scale_ptr + m[:, None] * GROUPS + g[None, :])
        c = tl.dot_scaled(a, a_scale, A, b, b_scale, B, acc=c, lhs_k_pack=A_K_PACK, rhs_k_pack=B_K_PACK)
    else:
        c = tl.dot_scaled(a, None, A, b, b_scale, B, acc=c, lhs_k_pack=A_K_PACK, rhs_k_pack=B_K_PACK)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


def fp4(code: int) -> float:
    """e2m1: a sign, two bits of exponent with bias 1, one bit after the point."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
    return -size if code & 8 else size


def fp8(code: int, exponent_bits: int) -> float:
    """e4m3 (bias 7, no infinity) or e5m2 (bias 15)."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & (1 << mantissa_bits) - 1
    sign = -1.0 if code & 0x80 else 1.0
    if exponent_bits == 4 and code & 0x7F == 0x7F:
        return math.nan
    if exponent_bits == 5 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / 2**mantissa_bits
    return sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


def scale_of(code: int) -> float:
    """E8M0."""
    return math.nan if code == 255 else 2.0 ** (code - 127)


def codes_of(kind: str, rows: int, cols: int, seed: int) -> torch.Tensor:
    """[rows, cols] codes, one a byte for e2m1 still; without infinity and NaN, which have a test of their own."""
    generator = torch.Generator().manual_seed(seed)
    if kind in ("bf16", "fp16"):
        return torch.randn(rows, cols, generator=generator).to(torch.bfloat16 if kind == "bf16" else torch.float16)
    codes = torch.randint(0, 16 if kind == "e2m1" else 256, (rows, cols), generator=generator, dtype=torch.uint8)
    infinite = {
        "e2m1": torch.zeros_like(codes, dtype=torch.bool),
        "e4m3": codes & 0x7F == 0x7F,
        "e5m2": codes & 0x7C == 0x7C,
    }
    return torch.where(infinite[kind], torch.full_like(codes, 0x35), codes)


def numbers_of(codes: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("bf16", "fp16"):
        return codes.double()
    one = {"e2m1": fp4, "e4m3": lambda code: fp8(code, 4), "e5m2": lambda code: fp8(code, 5)}[kind]
    return torch.tensor([[one(code) for code in row] for row in codes.tolist()], dtype=torch.float64)


def packed(codes: torch.Tensor, axis: int) -> torch.Tensor:
    """fp4: two codes a byte along ``axis``, the first in the low nibble."""
    first, second = codes.movedim(axis, -1)[..., 0::2], codes.movedim(axis, -1)[..., 1::2]
    return (first | second << 4).movedim(-1, axis).contiguous()


def scaled(a, a_scale, kind_a, b, b_scale, kind_b, a_k_pack=True, b_k_pack=True, groups=2) -> tuple[torch.Tensor, ...]:
    """What the kernel gives, and what the definition gives in float64."""
    c = torch.randn(M, N, generator=torch.Generator().manual_seed(9))
    a_bytes = packed(a, -1 if a_k_pack else 0) if kind_a == "e2m1" else a
    b_bytes = packed(b, 0 if b_k_pack else -1) if kind_b == "e2m1" else b
    got = c.clone()
    _dot_scaled[(1,)](
        a_bytes, a_scale, b_bytes, b_scale, got, A=kind_a, B=kind_b, A_ROWS=a_bytes.shape[0], A_COLS=a_bytes.shape[1],
        B_ROWS=b_bytes.shape[0], B_COLS=b_bytes.shape[1], M=M, N=N, GROUPS=groups, A_SCALED=a_scale is not None,
        A_K_PACK=a_k_pack, B_K_PACK=b_k_pack,
    )  # fmt: skip
    left, right = numbers_of(a, kind_a), numbers_of(b, kind_b)

    def factors(scale: torch.Tensor) -> torch.Tensor:
        one = scale_of if scale.dtype == torch.uint8 else lambda code: fp8(code, 4)
        plain = scale.view(torch.uint8).tolist()
        return torch.tensor([[one(code) for code in row] for row in plain], dtype=torch.float64)

    expected = c.double()
    for k in range(K):
        group = k // (K // groups)
        column = left[:, k] * (factors(a_scale)[:, group] if a_scale is not None else 1.0)
        expected = expected + column[:, None] * (right[k] * factors(b_scale)[:, group])[None, :]
    return got, expected


def e8m0_scales(rows: int, groups: int, seed: int) -> torch.Tensor:
    return torch.randint(120, 134, (rows, groups), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.mark.parametrize("kind_b", ["e2m1", "e4m3", "e5m2"])
@pytest.mark.parametrize("kind_a", ["e2m1", "e4m3", "e5m2", "bf16", "fp16"])
def test_every_pair_of_formats(kind_a: str, kind_b: str) -> None:
    a, b = codes_of(kind_a, M, K, 0), codes_of(kind_b, K, N, 1)
    a_scale = e8m0_scales(M, 2, 2) if kind_a.startswith("e") else None
    got, expected = scaled(a, a_scale, kind_a, b, e8m0_scales(N, 2, 3), kind_b)
    torch.testing.assert_close(got.double(), expected, rtol=2**-22, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize(("a_k_pack", "b_k_pack"), [(False, True), (True, False), (False, False)])
def test_fp4_packed_along_rows_or_columns(a_k_pack: bool, b_k_pack: bool) -> None:
    a, b = codes_of("e2m1", M, K, 4), codes_of("e2m1", K, N, 5)
    got, expected = scaled(a, e8m0_scales(M, 2, 6), "e2m1", b, e8m0_scales(N, 2, 7), "e2m1", a_k_pack, b_k_pack)
    torch.testing.assert_close(got.double(), expected, rtol=2**-22, atol=1e-6)


def test_nvfp4_scales_are_e4m3_and_sixteen_share_one() -> None:
    a, b = codes_of("e2m1", M, K, 8), codes_of("e2m1", K, N, 9)
    a_scale, b_scale = (codes_of("e4m3", rows, 4, 10 + rows).view(torch.float8_e4m3fn) for rows in (M, N))
    got, expected = scaled(a, a_scale, "e2m1", b, b_scale, "e2m1", groups=4)
    torch.testing.assert_close(got.double(), expected, rtol=2**-22, atol=1e-6 * expected.abs().max().item())


def test_scale_0_is_two_to_minus_127_and_scale_255_is_nan() -> None:
    a, b = codes_of("e4m3", M, K, 11), codes_of("e2m1", K, N, 12)
    a_scale, b_scale = e8m0_scales(M, 2, 13), e8m0_scales(N, 2, 14)
    a_scale[0], b_scale[:] = 0, 254  # 2^-127 · 2^127: neither may be lost on the way
    a_scale[1:] = 3
    a_scale[5, 1] = 255
    got, expected = scaled(a, a_scale, "e4m3", b, b_scale, "e2m1")
    assert got.isnan().any(1).tolist() == [row == 5 for row in range(M)] and got[5].isnan().all()
    kept = [row for row in range(M) if row != 5]
    torch.testing.assert_close(
        got[kept].double(), expected[kept], rtol=2**-22, atol=1e-6 * expected[kept].abs().max().item()
    )
    assert expected[0].abs().max() > 1


@pytest.mark.parametrize("code", [0x7C, 0xFC, 0x7E], ids=["infinity", "minus infinity", "NaN"])
def test_infinity_and_nan_of_e5m2_come_through(code: int) -> None:
    a, b = torch.full((M, K), 0x3C, dtype=torch.uint8), torch.full((K, N), 0x3C, dtype=torch.uint8)
    a[2, 7] = code
    ones = torch.full((M, 2), 127, dtype=torch.uint8)
    got, expected = scaled(a, ones, "e5m2", b, ones, "e5m2")
    torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=1e-6, atol=1e-6)
    assert not got[2].isfinite().any() and got[3].isfinite().all()
