"""Which blocks the kernel's loops visit: none that no row sees, all that some row sees; masks only where needed."""

from __future__ import annotations

import pytest
import torch

from kernels.reference import flash_attention as definition
from kernels.triton import attention_walk
from kernels.triton.flash_attention import flash_attention
from kernels.triton.flash_tiles import Tiles
from kernels.triton.interpreter import interpreting
from kernels.triton.interpreter.values import as_array, as_scalar, as_tensor
from kernels.triton.visits import Visit, visiting
from tests.kernels.triton.rules import drawn

if not interpreting():
    pytest.skip("visits are watched in the interpreter", allow_module_level=True)

TILES = Tiles(16, 16, 4, 1)


def watch(queries: int, keys: int, window: int | None, causal: bool = True) -> list[Visit]:
    q, k, v = drawn(queries, 2, 16), drawn(keys, 1, 16, seed=1), drawn(keys, 1, 16, seed=2)
    cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (queries, keys))
    with visiting() as visits:
        out, _ = flash_attention(q, k, v, cu_q, cu_k, scale=0.25, causal=causal, window=window, config=TILES)
    right, _ = definition(q, k, v, cu_q, cu_k, scale=0.25, causal=causal, window=window)
    torch.testing.assert_close(out, right, atol=1e-5, rtol=1e-5)
    return visits


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(40, 40, None), (40, 40, 20), (5, 50, 20), (33, 64, 3), (9, 4, None)]
)
def test_visits_are_what_the_mask_asks_for(queries: int, keys: int, window: int | None) -> None:
    visits = watch(queries, keys, window)
    expected = set()
    for row in range(0, queries, 8):  # 16 rows are 8 queries of 2 heads
        first, last = (keys - queries + i for i in (row, min(row + 7, queries - 1)))
        for start in range(0, keys, 16):
            seen = [
                key < keys and key <= query and (window is None or query - key < window)
                for query in range(first, last + 1)
                for key in range(start, start + 16)
            ]
            if any(seen):
                expected.add(Visit(0, 0, first, last, start, start + 16, not all(seen)))
    assert {one._replace(program=0) for one in visits} == expected and len(visits) == len(expected)


def test_without_causality_only_the_tail_is_masked() -> None:
    visits = watch(8, 40, None, causal=False)
    assert [(one.start, one.masked) for one in visits] == [(0, False), (16, False), (32, True)]


def test_nothing_is_watched_afterwards() -> None:
    walk = attention_walk.walk
    with visiting() as visits:
        assert attention_walk.walk is not walk
    assert attention_walk.walk is walk and visits == []


def test_values_go_there_and_back() -> None:
    numbers = torch.arange(8.0).reshape(2, 4).numpy()
    assert (as_array(as_tensor(numbers)) == numbers).all()
    assert as_array(as_scalar(-3)).item() == -3 and as_array(7).item() == 7
