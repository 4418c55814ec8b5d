"""Shares of a KV memory against a memory of single cells that is labelled cell by cell in every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.kv.pool import BlockPool
from workbench.measure import kv_waste
from workbench.measure.contiguous import ALLOCATORS, Buddy, FirstFit
from workbench.measure.kv_waste import RULES, Demand, Slots, Waste, draw_load, page, parts, reserve
from workbench.measure.lengths import LogNormal, Uniform

LONGEST, SIZE = 24, 75


def small_load(seed: int, count: int = 30) -> list[Demand]:
    return draw_load(count, Uniform(1, 9), LogNormal(5, 1.0, 1, 20), LONGEST, seed)


def arrivals(seed: int, count: int = 30) -> list[int]:
    draw = Random(seed)
    return sorted(draw.randint(0, 60) for _ in range(count))


def by_cells(load: list[Demand], come: list[int], memory: Any, asked: list[int]) -> Waste:
    """Who is where in each step follows from when each was admitted; every cell then gets one label."""
    waiting: list[int] = []
    admitted: dict[int, int] = {}
    labels: Counter[str] = Counter()
    steps = running = step = 0
    while step <= max(come) or waiting or memory.pieces:
        for number in [n for n in memory.pieces if step - admitted[n] == load[n].answer]:
            memory.give_back(number)
        waiting += [number for number, when in enumerate(come) if when == step]
        while waiting and memory.take(waiting[0], asked[waiting[0]]):
            admitted[waiting.pop(0)] = step
        if waiting:
            cells = ["free"] * memory.size
            for number, (start, slots) in memory.pieces.items():
                for cell in range(slots):
                    if cell < load[number].prompt + step - admitted[number]:
                        label = "tokens"
                    elif cell < load[number].final:
                        label = "reserved"
                    else:
                        label = "internal" if cell < asked[number] else "rounding"
                    cells[start + cell] = label
            free = "scattered" if cells.count("free") >= asked[waiting[0]] else "too_few"
            labels.update(free if cell == "free" else cell for cell in cells)
            steps, running = steps + 1, running + len(memory.pieces)
        step += 1
    return Waste(Slots(*(labels[name] for name in Slots._fields)), steps, running, 0, 0)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_every_cell_is_counted_once_and_under_its_name(allocator: str, rule: str, seed: int) -> None:
    load, come = small_load(seed), arrivals(seed)
    asked = [RULES[rule](one, LONGEST) for one in load]
    found = reserve(load, ALLOCATORS[allocator](SIZE), RULES[rule], LONGEST, come)
    assert found == by_cells(load, come, ALLOCATORS[allocator](SIZE), asked)
    assert sum(found.slots) == SIZE * found.steps


def test_the_load_tells_all_kinds_of_waste_apart() -> None:
    found = reserve(small_load(0), Buddy(SIZE), RULES["pow2"], LONGEST, arrivals(0)).slots
    assert all(found), found


@pytest.mark.parametrize("broken", [
    lambda stored, final, held: (stored, held - stored, 0),
    lambda stored, final, held: (stored, 0, held - stored),
    lambda stored, final, held: (stored, final - stored, held - stored),
])  # fmt: skip
def test_wrong_parts_are_noticed(monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]) -> None:
    monkeypatch.setattr(kv_waste, "parts", broken)
    load, come = small_load(1), arrivals(1)
    asked = [RULES["max"](one, LONGEST) for one in load]
    assert reserve(load, Buddy(SIZE), RULES["max"], LONGEST, come) != by_cells(load, come, Buddy(SIZE), asked)


def test_blocks_as_long_as_the_model_are_reserve_max() -> None:
    load, pool = small_load(2), BlockPool(SIZE // LONGEST, LONGEST)
    paged = page(load, pool, arrivals(2))
    reserved = reserve(load, FirstFit(SIZE // LONGEST * LONGEST), RULES["max"], LONGEST, arrivals(2))
    assert paged == reserved and paged.preempted == 0
    pool.check()


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_paging_wastes_less_than_a_block_a_request(block_size: int, seed: int) -> None:
    load, pool = small_load(seed), BlockPool(64 // block_size, block_size)
    found = page(load, pool)
    pool.check()
    assert pool.num_free == pool.num_blocks and not pool.tables
    slots = found.slots
    assert sum(slots) == 64 * found.steps and slots.rounding == slots.scattered == 0
    assert slots.reserved + slots.internal <= (block_size - 1) * found.running
    assert (slots.reserved + slots.internal == 0) is (block_size == 1)


@pytest.mark.parametrize("block_size", [1, 3])
def test_tables_grow_with_what_is_stored(monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    """Seen from the pool: whoever is counted holds just the blocks that the tokens need; the first comes first."""
    pool = BlockPool(24, block_size)
    seen = []

    def watched(self: Any, held: Any, running: Any, *rest: Any) -> None:
        for (stored, slots), number in zip(held, running, strict=True):
            assert slots == pool.blocks_for(stored) * block_size == len(pool.tables[str(number)]) * block_size
        assert running[0] == min(running), "who came first runs on"
        seen.append(len(running))
        count(self, held, running, *rest)

    count = kv_waste._Line.count
    monkeypatch.setattr(kv_waste._Line, "count", watched)
    found = page(small_load(0), pool)
    assert found.preempted > 0 and len(seen) == found.steps and sum(seen) == found.running


def test_what_was_computed_again_by_hand() -> None:
    """Four blocks of one token. Both begin with 2; the first grows to 3 by taking the second's, which has 2 then and
    comes back when the first is done: 2 of the 4 + 3 tokens stored in the end were computed twice."""
    found = page([Demand(2, 3), Demand(2, 2)], BlockPool(4, 1))
    assert (found.preempted, found.recomputed) == (1, 2)
    assert page([Demand(2, 1)] * 3, BlockPool(4, 1)).recomputed == 0, "who grows no more is never preempted"


def test_more_memory_never_holds_fewer() -> None:
    load = small_load(3, 60)
    at_once = [page(load, BlockPool(blocks, 4)).at_once for blocks in (8, 12, 20)]
    assert at_once == sorted(at_once) and at_once[0] < at_once[-1]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="24 slots never fit into 20"):
        reserve(small_load(0), FirstFit(20), RULES["max"], LONGEST)
    with pytest.raises(UsageError, match="never fit into 2 blocks of 4"):
        page(small_load(0), BlockPool(2, 4))
    with pytest.raises(UsageError, match="nobody ever waited"):
        page(small_load(0, 2), BlockPool(64, 4))
    with pytest.raises(UsageError, match="leaves no room in 5"):
        draw_load(3, Uniform(5, 9), Uniform(1, 2), 5, 0)
    for wrong in ([0], [3, 1]):
        with pytest.raises(UsageError, match="one step for each, in order"):
            page(small_load(0, 2), BlockPool(8, 4), wrong)


def test_parts_by_hand() -> None:
    assert parts(5, 12, 16) == (5, 7, 4)
    assert parts(5, 12, 8) == (5, 3, 0)
    assert parts(12, 12, 12) == (12, 0, 0)
