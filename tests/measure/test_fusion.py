"""Bytes of operations apart and fused. That kernels move so many: `tests/kernels/triton/test_traffic.py`."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.measure import fusion


def test_by_hand() -> None:
    """8 tokens of 100 numbers of 2 bytes: 1,600 bytes a tensor, 200 a row, 16 a column."""
    norm = fusion.rms_norm(8, 100)
    assert norm.apart_bytes == 3 * 1600 + 2 * 1600 + (1600 + 16) + (1600 + 16 + 1600) + (1600 + 200 + 1600)
    assert norm.fused_bytes == 4 * 1600 + 200
    silu = fusion.silu_mul(8, 100)
    assert (silu.apart_bytes, silu.fused_bytes, silu.ratio) == (5 * 1600, 3 * 1600, 5 / 3)
    rope = fusion.rope_and_write(8, 4, 1, 16, norms=True)
    head, places = 8 * 16 * 2, 8 * (8 + 16 * 4)
    assert rope.fused_bytes == 6 * head + places + 64 + 2 * 32 + (5 + 2) * head
    assert rope.apart_bytes == (8 * head + 32) + (2 * head + 32) + (10 * head + places) + (4 * head + 64)
    assert fusion.matmul(8, 100, 50).apart_bytes - fusion.matmul(8, 100, 50).fused_bytes == 4 * 1600
    assert {rung: sum(one.read + one.written for one in passes) for rung, passes in fusion.softmax(8, 100).items()} == {
        "naive": 3 * 1600 + 2 * 3200 + 4 * 32,
        "fused": 2 * 1600,
        "online": 3 * 1600,
    }


@pytest.mark.parametrize(("tokens", "width"), [(0, 4), (4, -1), (2.0, 4), (True, 4)])
def test_wrong_numbers_are_refused_by_name(tokens: object, width: object) -> None:
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        fusion.silu_mul(tokens, width)  # type: ignore[arg-type]
