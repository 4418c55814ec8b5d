"""The product with its epilogue, and linear through it: against the definition in float64."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import reference
from kernels.reference.matmul import ACTIVATIONS
from kernels.reference.weights import float_weight, pack
from kernels.triton import matmul
from tests.kernels.triton.rules import agrees, amid_nan, drawn

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.gpu_quick
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "weights", "with_bias", "activation"),
    [
        (1, 1, 1, F32, F32, False, "none"),
        (3, 70, 130, BF16, BF16, True, "silu"),
        (17, 64, 128, F16, F16, True, "relu"),
        (70, 300, 64, BF16, BF16, False, "gelu"),
        (33, 65, 40, F32, BF16, True, "gelu"),
        (5, 20, 0, F32, F32, True, "none"),
        (0, 4, 8, BF16, BF16, True, "none"),
        (600, 70, 8, F32, F32, False, "none"),  # more rows of tiles than go together
    ],
)
def test_products(
    m: int, n: int, k: int, dtype: torch.dtype, weights: torch.dtype, with_bias: bool, activation: str,
    device: str,
) -> None:  # fmt: skip
    a, weight = amid_nan(m, k, dtype=dtype).to(device), (drawn(n, k, seed=1) / 8).to(device, weights)
    bias = drawn(n, seed=2, dtype=weights).to(device) if with_bias else None
    wide = a.double() @ weight.double().T + (0 if bias is None else bias.double())
    given = (bias, activation)
    same = reference.matmul(a, weight.T, *given)
    agrees(kernels.matmul(a, weight.T, *given, maker="triton"), same, ACTIVATIONS[activation](wide))
    by_rows = kernels.matmul(a, weight.T.contiguous(), *given, maker="triton")
    assert torch.equal(by_rows, kernels.matmul(a, weight.T, *given, maker="triton")), "b in either order of memory"


def test_linear_takes_weights_of_floats(device: str) -> None:
    x, weight, bias = drawn(9, 64).to(device), (drawn(40, 64, seed=1) / 8).to(device), drawn(40, seed=2).to(device)
    for kind in (F32, BF16):
        one = float_weight(weight.to(kind))
        wide = x.double() @ one.data.double().T + bias.double()
        agrees(kernels.linear(x, one, bias, maker="triton"), reference.linear(x, one, bias), wide)
    with pytest.raises(ValueError, match="weights of int8 are not read by it yet; use maker='reference'"):
        kernels.linear(x.cpu(), pack(weight.cpu(), "int8"), maker="triton")


@pytest.mark.gpu_quick
def test_what_is_no_number_stays_in_its_row_and_column(device: str) -> None:
    a, b = torch.ones(20, 32, device=device), torch.ones(32, 40, device=device)
    a[3, 5] = b[7, 11] = float("nan")
    for activation in ACTIVATIONS:
        broken = kernels.matmul(a, b, activation=activation, maker="triton").isnan()
        expected = torch.zeros_like(broken)
        expected[3] = expected[:, 11] = True
        assert torch.equal(broken, expected), activation


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_every_tile_that_a_gpu_takes(arch: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "capability", lambda device: arch)
    for rows in (5, 40, 140):
        a, b = drawn(rows, 192, dtype=BF16).to(device), (drawn(192, 136, seed=1) / 16).to(device, BF16)
        agrees(matmul.matmul(a, b), reference.matmul(a, b), a.double() @ b.double())


def test_wrong_arguments_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.triton.launch.interpreted", lambda: True)
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    for call, reason in (
        (lambda: matmul.matmul(a, a), r"matrices \[2, 3\] and \[2, 3\] and the bias do not fit together"),
        (lambda: matmul.matmul(a, b, torch.ones(3)), "do not fit together"),
        (lambda: matmul.matmul(a, b, activation="tanh"), "activation 'tanh'; there are none, relu, silu, gelu"),
        (lambda: matmul.matmul(a.double(), b), "a is torch.float64"),
        (lambda: reference.matmul(a, b, activation="tanh"), "activation 'tanh'; there are none, relu, silu, gelu"),
    ):
        with pytest.raises(ValueError, match=reason):
            call()
