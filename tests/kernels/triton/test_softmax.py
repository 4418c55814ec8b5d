"""Every rung of the softmax ladder against the definition in float64."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import reference
from kernels.triton import softmax
from tests.kernels.triton.rules import agrees, amid_nan

RUNGS = list(softmax.LADDER)


@pytest.mark.gpu_quick
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 1), torch.float32), ((2, 3, 20), torch.bfloat16), ((2, 1000), torch.float16), ((2, 4100), torch.float32)],
)
def test_each_rung(rung: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    x = (4 * amid_nan(*shape, dtype=dtype)).to(device)
    agrees(softmax.LADDER[rung](x), reference.softmax(x), x.double().softmax(-1))


@pytest.mark.gpu_quick
@pytest.mark.parametrize("rung", RUNGS)
def test_masked_rows_and_broken_ones(rung: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of −inf before, between and after numbers; a row of them alone is zeros; NaN and +inf stay their row's."""
    monkeypatch.setattr(softmax, "BLOCK", 16)
    x = torch.zeros(7, 50, device=device)
    x[0, :40] = x[1, 20:] = x[2] = float("-inf")
    x[3, 17:33] = float("-inf")
    x[4, 20], x[5, 49] = float("nan"), float("inf")
    x[6] = torch.linspace(-1e30, 1e30, 50)
    found = softmax.LADDER[rung](x)
    torch.testing.assert_close(found, reference.softmax(x), equal_nan=True)
    assert not found[2].any() and found[[4, 5]].isnan().all() and found[[0, 1, 3, 6]].isfinite().all()


@pytest.mark.parametrize("rung", RUNGS)
def test_a_larger_one_later_changes_what_came_before(rung: str, device: str, monkeypatch) -> None:
    """The online sum is brought to the new largest in whichever block it comes."""
    monkeypatch.setattr(softmax, "BLOCK", 16)
    for at in (0, 15, 16, 47, 63):
        x = torch.full((1, 64), -2.0, device=device)
        x[0, at] = 90.0
        torch.testing.assert_close(softmax.LADDER[rung](x), reference.softmax(x))


def test_the_operation_takes_rows_of_any_length(device: str) -> None:
    for columns in (0, 1, 5, softmax.LONGEST_FUSED + 1):
        x = torch.ones(2, columns, device=device)
        torch.testing.assert_close(kernels.softmax(x, maker="triton"), reference.softmax(x))
    assert kernels.softmax(torch.ones(0, 4, device=device), maker="triton").shape == (0, 4)
