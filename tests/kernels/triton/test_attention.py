"""Every rung of attention against the definition: a pairwise cover of types, shapes, masks and layouts.

Tensors lie amid NaN and the checker is on, so whatever is read outside its bounds shows. Numbers in brackets are those
of the bugs that users of such kernels met.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.triton.flash_tiles import Tiles
from tests.kernels.pairwise import cover
from tests.kernels.triton.attention_cases import Case

LENGTHS = {
    "decode": [(1, 1), (1, 17), (1, 463)],
    "empty": [(0, 5), (3, 0), (1, 1), (0, 0), (5, 16), (2, 0)],  # [4]
    "prompts": [(5, 5), (97, 97), (1, 1)],
    "chunks": [(33, 263), (5, 15), (16, 64)],
    "more queries than keys": [(7, 3), (33, 16)],  # [1, 3] their first rows see nothing
}
FACTORS: dict[str, list[Any]] = {
    "rung": ["naive", "tiled", "flash", "descriptors"],
    "lengths": list(LENGTHS),
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [64, 80, 96, 128, 192, 256, 24],  # [9]
    "group": [1, 3, 4, 7, 8],  # [11]
    "causal": [True, False],
    "window": [None, 1, 17, 64, 10_000],
    "softcap": [None, 30.0, 1.0],
    "sinks": [False, True],
    "layout": ["plain", "heads first", "slice"],  # [12]
    "config": [Tiles(64, 64, 4, 1), Tiles(32, 32, 4, 1), Tiles(128, 32, 4, 1)],
}


def cases() -> list[Any]:
    named = []
    for n, case in enumerate(cover(FACTORS)):
        words = [str(case[name]).removeprefix("torch.") for name in FACTORS if name != "config"]
        named.append(pytest.param(case, id=f"{n}-" + "-".join(words)))
    return named


@pytest.mark.gpu_quick
@pytest.mark.parametrize("case", cases())
def test_rungs_equal_the_definition(case: dict[str, Any], device: str) -> None:
    given = dict(case)
    rung, config, lengths = given.pop("rung"), given.pop("config"), LENGTHS[given.pop("lengths")]
    made = Case(lengths, kv_heads=2 if given["group"] < 4 else 1, device=device, **given)
    if rung == "descriptors":
        made.check(*made.run("flash", config=config, descriptors=True))
    else:
        made.check(*made.run(rung, config=config))


@pytest.mark.proof
@pytest.mark.parametrize("q_len", [0, 1, 5, 129])
@pytest.mark.parametrize("k_len", [0, 1, 15, 16, 17, 463, 1328])
@pytest.mark.parametrize("descriptors", [False, True])
def test_lengths(q_len: int, k_len: int, descriptors: bool, device: str) -> None:
    for n, (window, softcap, sinks) in enumerate([(None, None, False), (100, 50.0, True)]):
        case = Case(
            [(q_len, k_len), (2, 2)], 64, 4, 1, torch.bfloat16, True, window, softcap, sinks, seed=n, device=device
        )
        case.check(*case.run(descriptors=descriptors))
