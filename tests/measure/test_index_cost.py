"""What an index costs: counted on the pool it says, and bytes that grow with what is kept."""

from __future__ import annotations

import pytest

from workbench.kv.caching_pool import INDEXES, CachingPool
from workbench.measure.index_cost import index_bytes, index_cost

TOKENS = [number * 7919 % 49_152 for number in range(600)]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("size", [1, 16])
def test_a_cost_is_of_the_whole_prompt(index: str, size: int) -> None:
    cost = index_cost(index, size, TOKENS, repeats=3)
    assert (cost.prefix_index, cost.block_size, cost.num_tokens) == (index, size, 600)
    assert len(cost.enter.seconds) == len(cost.find.seconds) == 3 and min(*cost.enter.seconds, *cost.find.seconds) > 0
    assert cost.enter_ns == cost.enter.median / 600 * 1e9 and cost.find_ns == cost.find.median / 600 * 1e9
    # At least what stands for the tokens: four bytes each, or a digest for each block.
    assert cost.bytes > (4 * 600 if index == "radix" else 32 * (600 // size))


@pytest.mark.parametrize("index", INDEXES)
def test_bytes_are_those_of_what_is_kept(index: str) -> None:
    pool = CachingPool(64, 4, index)
    empty = index_bytes(pool.index)
    sizes = []
    for number in range(3):
        name = str(number)
        pool.enroll(name)
        pool.open(name)
        pool.grow(name, 16)
        pool.publish(name, TOKENS[64 * number : 64 * number + 64], 64)
        sizes.append(index_bytes(pool.index))
    assert empty < sizes[0] < sizes[1] < sizes[2] and sizes[0] - empty > 64 * 2
    for name in ("0", "1", "2"):
        pool.release(name)
    pool.reset()
    assert index_bytes(pool.index) == empty


def test_half_a_block_at_the_end_is_no_block() -> None:
    assert (
        index_cost("radix", 16, TOKENS[:30], repeats=2).bytes == index_cost("radix", 16, TOKENS[:16], repeats=2).bytes
    )
