"""The bytes that `workbench.measure.fusion` counts on paper are those that the kernels really move."""

from __future__ import annotations

import pytest
import torch

from kernels.triton import activation, matmul, norm, rope, softmax
from kernels.triton.interpreter import interpreting
from kernels.triton.traffic import Moved, counting
from workbench.measure import fusion

BF16 = torch.bfloat16


if not interpreting():
    pytest.skip("bytes are counted in the interpreter", allow_module_level=True)


def told(launches: list[Moved]) -> list[tuple[int, int]]:
    return [(one.read, one.written) for one in launches]


def counted(passes: tuple[fusion.Pass, ...]) -> list[tuple[int, int]]:
    return [(one.read, one.written) for one in passes]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=BF16)


def test_each_fused_kernel_moves_what_is_counted() -> None:
    with counting() as launches:
        norm.rms_norm(ones(5, 100), ones(100), 1e-5, ones(5, 100))
        activation.silu_mul(ones(3, 120))
        matmul.matmul(ones(20, 48), ones(48, 70), ones(70), "silu")
    assert told(launches) == [
        *counted(fusion.rms_norm(5, 100).fused),
        *counted(fusion.silu_mul(3, 60).fused),
        *counted(fusion.matmul(20, 70, 48).fused),
    ]


@pytest.mark.parametrize("norms", [False, True])
def test_rope_and_the_cache_write(norms: bool) -> None:
    table, weights = torch.ones(9, 8), [ones(16) if norms else None] * 2
    weights = [None if one is None else one.clone() for one in weights]
    with counting() as launches:
        rope.rope_and_write(
            ones(4, 96), torch.arange(4), table, table.clone(), torch.arange(4), ones(2, 2, 2, 1, 16), *weights
        )
    assert told(launches) == counted(fusion.rope_and_write(4, 4, 1, 16, norms=norms).fused)


def test_the_rungs_of_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "BLOCK", 64)
    for rung, passes in fusion.softmax(3, 150).items():
        with counting() as launches:
            softmax.LADDER[rung](ones(3, 150))
        assert [(one.asked, one.written) for one in launches] == counted(passes), rung


def test_a_byte_read_twice_counts_once_and_is_asked_for_twice() -> None:
    with counting() as launches:
        softmax.online(torch.ones(2, 8))
    assert launches == [Moved("_online", 2 * 8 * 4, 2 * 8 * 4, 2 * 2 * 8 * 4)]
    softmax.online(torch.ones(2, 8))
    assert len(launches) == 1, "nothing is counted outside"
