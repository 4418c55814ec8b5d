"""How paged attention is cut: FlashAttention-3's rule, bounds with and without a look at lengths, fixed splits."""

from __future__ import annotations

from itertools import product

import torch

from kernels.triton.flash_tiles import Tiles
from kernels.triton.paged_plan import bounds_for, bounds_of, decode_limit, even_splits, make_plan

SPLITS = [
    ((106, 500, 132), 1),  # 80 % of the chip are busy
    ((105, 500, 132), 5),  # 4 waves of 132 hold 525 of 528; fewer splits leave a fifth of the last wave idle
    ((8, 64, 132), 15),  # 120 of 132, while 14 make 112: under 85 % of the best, two whole waves by 33
    ((8, 3000, 132), 15),
    ((1, 64, 132), 55),  # one program: as many as there are blocks, less what 15 % are
    ((1, 5, 132), 5),
    ((1, 4, 132), 1),  # nothing to split
    ((0, 64, 132), 1),
]


def test_even_splits() -> None:
    assert [even_splits(*given) for given, _ in SPLITS] == [splits for _, splits in SPLITS]


def test_who_decodes_depends_on_the_request_alone() -> None:
    assert [decode_limit(group) for group in (1, 3, 4, 7, 8, 16, 17, 71)] == [16, 5, 4, 2, 2, 1, 1, 1]
    assert bounds_of([0, 1, 5, 10], [9, 900, 70], 4) == (4, True, 900)
    assert bounds_of([0, 1, 1, 3], [9, 900, 70], 4) == (2, False, 70)
    assert bounds_of([0, 5], [900], 4) == (0, True, 0)
    assert bounds_of([0], [], 4) == (0, False, 0)
    assert bounds_for(1, 4096, 4) == (1, False, 4096)
    assert bounds_for(300, 4096, 4) == (4, True, 4096)


def test_fixed_splits_are_enough_and_no_more() -> None:
    """Counted as the kernel cuts them, over every length that the bound allows."""
    for width, window, length in product((1, 2), (None, 1, 63, 64, 65, 200, 5000), (1, 64, 65, 128, 129, 1000)):
        starts, lengths = torch.tensor([0, width], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
        options = {"num_kv_heads": 1, "group": 4, "tiles": Tiles(16, 64, 4, 1), "window": window, "split_size": 64}
        plan = make_plan(starts, lengths, bounds_of([0, width], [length], 4), **options)
        needed = 1
        for k_len in range(1, length + 1):
            lowest = 0 if window is None else max(k_len - width - window + 1, 0)
            needed = max(needed, -(-(k_len - lowest // 64 * 64) // 64))
        assert plan.num_splits == needed, (width, window, length)
