"""Paged attention in Triton against the definition: a pairwise cover of lengths, types, heads, pages, masks and splits.

Unused pages and the tails of used ones are NaN, tables end in garbage, the checker is on. Numbers in brackets are those
of the bugs that users of such kernels met.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.pairwise import cover
from tests.kernels.triton.paged_cases import SPLITS, Paged

pytestmark = pytest.mark.usefixtures("no_clean_memory")

LENGTHS = {
    "decode": [(1, 1), (1, 17), (1, 300)],
    "empty": [(0, 5), (1, 0), (1, 130), (0, 0), (2, 2)],  # [4]
    "mixed": [(1, 90), (33, 80), (2, 150), (20, 20)],
    "more queries than keys": [(7, 3), (1, 1), (19, 16)],  # [1, 3] their first rows see nothing
}
FACTORS: dict[str, list[Any]] = {
    "lengths": list(LENGTHS),
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [80, 128, 192, 256],  # [9]
    "group": [1, 3, 7, 20],  # [11]
    "page": [1, 16, 17, 48, 256],  # [10]
    "window": [None, 1, 17, 64],
    "softcap": [None, 30.0],
    "sinks": [False, True],  # [8]
    "layout": ["plain", "slice"],  # [12]
    "splits": list(SPLITS),
    "on_device": [False, True],
    "table_dtype": [torch.int64, torch.int32],
}


def cases() -> list[Any]:
    named = []
    for n, case in enumerate(cover(FACTORS)):
        words = [str(value).removeprefix("torch.") for value in case.values()]
        named.append(pytest.param(case, id=f"{n}-" + "-".join(words)))
    return named


@pytest.mark.parametrize("case", cases())
def test_it_equals_the_definition(case: dict[str, Any], device: str) -> None:
    given = dict(case)
    lengths, splits, on_device = (given.pop(name) for name in ("lengths", "splits", "on_device"))
    made = Paged(LENGTHS[lengths], kv_heads=2 if given["group"] < 4 else 1, device=device, **given)
    made.check(*made.run(splits, on_device))
