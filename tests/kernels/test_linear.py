"""Products with weights of every format: both makers and builds against arithmetic in float64 and in whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import kernels
from kernels.cpu import native
from kernels.reference.linear import LARGEST, STRETCH, quantize_rows
from kernels.reference.weights import Weight, float_weight, gguf_weight, numbers, pack, unpack
from tests.kernels.builds import one_build  # noqa: F401
from tests.kernels.weight_formats import KINDS, WHOLE, drawn, random_weight

pytestmark = pytest.mark.usefixtures("one_build")
MAKERS = ("reference", "cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def error_of(product: torch.Tensor, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """How far a product is from the exact one, in units of what its numbers could add up to."""
    wide = unpack(weight).double()
    exact = x.double() @ wide.T + (0 if bias is None else bias.double())
    return (product.double() - exact).abs() / (x.double().abs() @ wide.abs().T + 1e-9)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 12, 13, 25, 49, 193])
def test_products(kind: str, rows: int, maker: str, one_build: str) -> None:  # noqa: F811
    """Ragged numbers of rows and outputs, with and without bias; each is right to what its numbers carry."""
    if maker == "reference" and one_build == "portable":
        return  # it has no builds
    for out, into in ((1, 64), (37, 448), (16, 1024)):
        weight, x = random_weight(kind, out, into, seed=out), drawn(rows, into, seed=rows)
        for bias in (None, drawn(out, seed=9)):
            product = kernels.linear(x, weight, bias, maker=maker)
            assert product.shape == (rows, out) and product.dtype == torch.float32
            assert error_of(product, x, weight, bias).max() < (1e-4 if kind in WHOLE else 1e-6)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("into", [1, 7, 8, 31, 33, 50, 257, 400])
@pytest.mark.parametrize("rows", [1, 6, 30])
def test_rows_of_any_length(kind: str, into: int, rows: int) -> None:
    weight, x = random_weight(kind, 19, into), drawn(rows, into, seed=1)
    assert error_of(kernels.linear(x, weight, maker="cpu"), x, weight, None).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_see_its_neighbours(kind: str) -> None:
    """Each row's bits are the same alone, among few and among many, whichever tile and stretch it falls into."""
    into = 576 if kind in WHOLE else 571
    weight, x = random_weight(kind, 37, into), drawn(150, into, seed=1)
    whole = kernels.linear(x, weight, maker="cpu")
    for begin, end in ((0, 1), (149, 150), (3, 7), (40, 51), (40, 53), (7, 62), (50, 149)):
        assert torch.equal(kernels.linear(x[begin:end], weight, maker="cpu"), whole[begin:end]), (begin, end)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("rows", [1, 4, 7, 40])
def test_int8_equals_the_definition_to_the_bit(rows: int, bits: int) -> None:
    """Whole numbers are added exactly, so no order of additions can show."""
    weight, x = random_weight("int8", 33, 2 * STRETCH + 40), drawn(rows, 2 * STRETCH + 40, seed=rows)
    assert torch.equal(
        kernels.linear(x, weight, activation_bits=bits, maker="cpu"),
        kernels.linear(x, weight, activation_bits=bits, maker="reference"),
    )


@pytest.mark.parametrize("kind", ["int4-32", "int4-64", "q8_0", "q4_0", "q4_1"])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_sums_of_blocks_are_exact(kind: str, rows: int) -> None:
    """Scales that are powers of two and few digits: every step is exact, and the result is that of whole numbers."""
    plain = random_weight(kind, 21, 192, seed=3)
    data, scales = plain.data.clone(), plain.scales
    if scales is not None:
        scales = torch.full_like(scales, 0.5)
    else:
        head = 2 if kind == "q4_1" else 1
        blocks = data.view(21, 6, -1)
        blocks[..., : 2 * head] = torch.full((21, 6, head), 0.5, dtype=torch.float16).view(torch.uint8)
    weight = Weight(plain.format, plain.shape, data, scales, plain.group)
    x = torch.randint(-127, 128, (rows, 192), generator=torch.Generator().manual_seed(rows)).float()
    x[:, 0] = 127  # so that 8-bit rounding leaves the numbers as they are
    q, _, offset = numbers(weight)
    whole = (x.long()[:, None] * (q.reshape(21, 192).long() + (0 if offset is None else 1))).sum(-1)
    assert torch.equal(kernels.linear(x, weight, activation_bits=8, maker="cpu"), whole * 0.5)


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_1"])
def test_the_largest_numbers_do_not_overflow(kind: str) -> None:
    """Weights and activations at their limits, all of one sign: the sums are as large as they can become."""
    into = 3 * STRETCH
    if kind == "int8":
        weight = pack(torch.ones(4, into), "int8")
    elif kind == "q8_0":
        block = torch.cat(
            (torch.ones(1, dtype=torch.float16).view(torch.uint8), torch.full((32,), 128, dtype=torch.uint8))
        )
        weight = gguf_weight(block.repeat(4, into // 32, 1), "q8_0", (4, into))
    else:
        weight = pack(torch.full((4, into), 15.0), "int4")
    for rows in (1, 30):
        x = torch.ones(rows, into)
        exact = unpack(weight).double().sum(1).expand(rows, 4)
        torch.testing.assert_close(kernels.linear(x, weight, maker="cpu").double(), exact, rtol=1e-3, atol=0)


def test_rounded_activations_are_the_nearest() -> None:
    x = drawn(5, 100)
    for bits, most in LARGEST.items():
        q, scale = quantize_rows(x, bits)
        assert q.abs().amax(1).tolist() == [most] * 5
        assert ((q * scale[:, None] - x).abs() <= scale[:, None] * 0.5001).all()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", WHOLE)
def test_a_row_of_zeros_gives_the_bias(kind: str, maker: str) -> None:
    """No scale becomes zero over zero."""
    x = drawn(3, 64)
    x[1] = 0
    bias = drawn(9, seed=2)
    product = kernels.linear(x, random_weight(kind, 9, 64), bias, maker=maker)
    assert torch.equal(product[1], bias) and product.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_row_stays_broken_and_alone(kind: str, broken: float) -> None:
    """What is not a number must not become one, and must not reach the neighbours."""
    x = drawn(30, 64)
    clean = kernels.linear(x, random_weight(kind, 9, 64), maker="cpu")
    x[7, 5] = broken
    for maker in MAKERS:
        product = kernels.linear(x, random_weight(kind, 9, 64), maker=maker)
        others = [row for row in range(30) if row != 7]
        assert torch.equal(product[others], clean[others]) or maker == "reference"
        assert not product[7].isfinite().any() and product[others].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_threads_change_no_bit(kind: str, rows: int) -> None:
    weight, x = random_weight(kind, 150, 320), drawn(rows, 320)
    found = []
    for count in (1, 2, 4, 7):
        torch.set_num_threads(count)
        found.append(kernels.linear(x, weight, maker="cpu"))
    assert all(torch.equal(found[0], one) for one in found[1:])


@pytest.mark.parametrize("kind", ["float32", "q4_1"])
def test_views_that_lie_apart_and_at_odd_addresses(kind: str) -> None:
    weight = random_weight(kind, 20, 64)
    storage = drawn(6, 200)
    x = storage[:, 3:67]
    assert torch.equal(kernels.linear(x, weight, maker="cpu"), kernels.linear(x.contiguous(), weight, maker="cpu"))
    raw = torch.empty(weight.data.nbytes + 1, dtype=torch.uint8)
    raw[1:] = weight.data.view(torch.uint8).flatten()
    if kind == "q4_1":
        odd = Weight("q4_1", weight.shape, raw[1:].view(weight.data.shape))
        assert torch.equal(kernels.linear(x, odd, maker="cpu"), kernels.linear(x, weight, maker="cpu"))


def test_no_rows_and_wrong_activations() -> None:
    weight = random_weight("q8_0", 4, 64)
    assert kernels.linear(torch.empty(0, 64), weight, maker="cpu").shape == (0, 4)
    for wrong in (drawn(2, 64).double(), drawn(2, 32), drawn(64, 2).T):
        with pytest.raises(ValueError, match="float32 rows of 64 neighbours"):
            kernels.linear(wrong, weight, maker="cpu")


@pytest.mark.parametrize("kind", ["float32", "int8", "q4_1"])
@pytest.mark.parametrize("rows", [1, 30])
def test_replayed_from_a_tape(kind: str, rows: int) -> None:
    """Recorded once; the same addresses hold new numbers, and the replay gives what a call would give."""
    weight, bias, x = random_weight(kind, 40, 96), drawn(40, seed=1), torch.empty(rows, 96)
    tape = native.Tape(native.Scratch(rows))
    with tape.recording():
        result = kernels.linear(x, weight, bias, maker="cpu")
    assert len(tape) == (1 if kind == "float32" else 2)
    for seed in range(3):
        x.copy_(drawn(rows, 96, seed=seed))
        tape.run()
        assert torch.equal(result, kernels.linear(x.clone(), weight, bias, maker="cpu"))


def test_auto_takes_the_kernel_for_float32_on_a_cpu_only() -> None:
    weight = float_weight(drawn(4, 8).half())
    assert kernels.linear(drawn(2, 8).half(), weight).dtype == torch.float16
    assert kernels.linear(drawn(2, 8), float_weight(drawn(4, 8).bfloat16())).dtype == torch.float32
