"""Merging partial results: the definition and the kernel, under the same tests."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.triton.merge_states import merge_states
from tests.kernels.triton.attention_cases import NAN

State = tuple[torch.Tensor, torch.Tensor]
NOTHING = float("-inf")


@pytest.fixture(params=["reference", "triton"])
def maker(request: pytest.FixtureRequest) -> str:
    return request.param


def state(seed: int, device: str, tokens: int = 7, heads: int = 3, dim: int = 80, dtype=torch.float32) -> State:
    draw = torch.Generator().manual_seed(seed)
    out = torch.randn(tokens, heads, dim, generator=draw).to(device, dtype)
    return out, (torch.randn(tokens, heads, generator=draw) * 4).to(device)


def close(got: State, expected: State, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got[0].double(), expected[0].double(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got[1].double(), expected[1].double(), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu_quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_mean_weighted_by_the_exponentials(maker: str, dtype: torch.dtype, device: str) -> None:
    a, b = state(0, device, dtype=dtype), state(1, device, dtype=dtype)
    x, y = (lse.double().exp()[..., None] for _, lse in (a, b))
    expected = (x * a[0].double() + y * b[0].double()) / (x + y), (x + y).squeeze(-1).log()
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    got = kernels.merge_states(*a, *b, maker=maker)
    assert got[0].dtype == dtype
    close(got, expected, tolerance)


@pytest.mark.gpu_quick
def test_an_empty_state_is_the_identity_whatever_its_out_holds(maker: str, device: str) -> None:
    """[3] Not one bit changes, on either side."""
    a = state(0, device)
    empty = torch.full_like(a[0], NAN), torch.full_like(a[1], NOTHING)
    for merged in (kernels.merge_states(*a, *empty, maker=maker), kernels.merge_states(*empty, *a, maker=maker)):
        assert torch.equal(merged[0], a[0]) and torch.equal(merged[1], a[1])


@pytest.mark.gpu_quick
def test_two_empty_states_make_an_empty_one(maker: str, device: str) -> None:
    """[3] −inf − −inf is not formed: out 0, lse −inf, in the rows that are empty and in no other."""
    a, b = state(0, device), state(1, device)
    for lse in (a[1], b[1]):
        lse[2:4] = NOTHING
    a[0][2:4] = b[0][2:4] = NAN
    out, lse = kernels.merge_states(*a, *b, maker=maker)
    assert not out[2:4].any() and (lse[2:4] == NOTHING).all()
    assert out[[0, 1, 4, 5, 6]].isfinite().all() and lse[[0, 1, 4, 5, 6]].isfinite().all()


def test_weights_far_apart(maker: str, device: str) -> None:
    """e^500 is no number, e^−1000 is none either: only differences count."""
    a, b = state(0, device), state(1, device)
    a[1].fill_(500.0)
    b[1].fill_(-500.0)
    close(kernels.merge_states(*a, *b, maker=maker), a)
    b[1].fill_(500.0)
    close(kernels.merge_states(*a, *b, maker=maker), ((a[0] + b[0]) / 2, a[1] + 0.6931472))


def test_views(maker: str, device: str) -> None:
    """[12] Heads first, logarithms too."""
    a, b = state(0, device), state(1, device)
    turned = a[0].transpose(0, 1).contiguous().transpose(0, 1), a[1].T.contiguous().T
    assert not turned[0].is_contiguous() and not turned[1].is_contiguous()
    expected = kernels.merge_states(*a, *b, maker=maker)
    for got in (kernels.merge_states(*turned, *b, maker=maker), kernels.merge_states(*b, *turned, maker=maker)):
        close(got, expected)


@pytest.mark.parametrize("shape", [(0, 3, 16), (1, 1, 1), (17, 1, 256), (5, 7, 24)])
def test_shapes(maker: str, shape: tuple[int, int, int], device: str) -> None:
    a, b = state(0, device, *shape), state(1, device, *shape)
    close(kernels.merge_states(*a, *b, maker=maker), kernels.merge_states(*a, *b, maker="reference"))


def test_the_order_of_merging_does_not_matter(maker: str, device: str) -> None:
    a, b, c = (state(seed, device) for seed in range(3))
    left = kernels.merge_states(*kernels.merge_states(*a, *b, maker=maker), *c, maker=maker)
    right = kernels.merge_states(*a, *kernels.merge_states(*b, *c, maker=maker), maker=maker)
    close(left, right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lse_b": torch.zeros(3, 7)}, r"lse_b \[3, 7\]"),
        ({"lse_a": torch.zeros(7, 3, dtype=torch.float64)}, "lse_a"),
        ({"out_b": torch.zeros(7, 3, 16)}, r"out_b \[7, 3, 16\]"),
        ({"out_a": torch.zeros(7, 80, 3).transpose(1, 2)}, "last numbers of out_a"),
    ],
)
def test_what_is_refused(change: dict, message: str) -> None:
    out, lse = state(0, "cpu")
    given = {"out_a": out, "lse_a": lse, "out_b": out, "lse_b": lse} | change
    with pytest.raises(ValueError, match=message):
        merge_states(**given)
