"""Bytes of torch's operations, call by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from workbench.measure.torch_traffic import counting

X = torch.ones(8, 4)  # 128 bytes
COLUMN = torch.ones(8, 1)  # 32
INDEX = torch.tensor([1, 0, 3])  # 24


@pytest.mark.parametrize(
    ("run", "moved"),
    [
        (lambda: X + X, [(256, 128)]),
        (lambda: X * COLUMN, [(160, 128)]),
        (lambda: X.square().mean(-1, keepdim=True), [(128, 128), (128, 32)]),
        (lambda: X[:, :2] * 2, [(64, 64)]),
        (lambda: X.view(4, 8).T, []),
        (lambda: X.clone().add_(X), [(128, 128), (256, 128)]),
        (lambda: torch.empty(8, 4).copy_(X), [(128, 128)]),
        (lambda: X[INDEX], [(24 + 48, 48)]),
        (lambda: torch.empty(8, 4).index_copy_(0, INDEX, X[:3]), [(24 + 48, 48)]),
        (lambda: X.bfloat16(), [(128, 64)]),
    ],
)
def test_by_hand(run: Callable[[], Any], moved: list[tuple[int, int]]) -> None:
    with counting() as calls:
        run()
    assert [(call.read, call.written) for call in calls] == moved


def test_nothing_is_counted_outside() -> None:
    with counting() as calls:
        pass
    X + X
    assert calls == []
