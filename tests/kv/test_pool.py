"""BlockPool against the plainest model of it: a set of free blocks and one list of blocks for each owner."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workbench.kv.pool import BlockPool, OutOfBlocks

OWNERS = tuple("abcdef")


class PoolMachine(RuleBasedStateMachine):
    """Opens, grows, shares and releases at random; the model counts holders anew each time."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.integers(1, 5))
    def make(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.handed_out: dict[str, list[int]] = {}
        self.taken = self.returned = self.added = 0

    def holders(self) -> Counter[int]:
        return Counter(block for table in self.tables.values() for block in table)

    @rule(owner=st.sampled_from(OWNERS))
    def open(self, owner: str) -> None:
        if owner in self.tables:
            with pytest.raises(ValueError, match="has a block table already"):
                self.pool.open(owner)
        else:
            self.handed_out[owner] = self.pool.open(owner)
            self.tables[owner] = []

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_blocks=st.integers(0, 6))
    def grow(self, data: st.DataObject, num_blocks: int) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        free = self.pool.num_blocks - len(self.holders())
        if num_blocks > free:
            with pytest.raises(OutOfBlocks, match=f"asked for {num_blocks} blocks and {free} are free"):
                self.pool.grow(owner, num_blocks)
            return
        held = set(self.holders())
        self.pool.grow(owner, num_blocks)
        fresh = self.pool.tables[owner][len(self.tables[owner]) :]
        assert len(fresh) == len(set(fresh)) == num_blocks
        assert not held & set(fresh), "a block that somebody holds was handed out again"
        self.tables[owner] = self.tables[owner] + fresh
        self.taken += num_blocks

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        others = sorted({block for name in self.tables for block in self.tables[name]} - set(self.tables[owner]))
        blocks = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        self.pool.share(owner, blocks)
        self.tables[owner] = self.tables[owner] + blocks
        self.added += len(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def sharing_a_free_block_is_refused(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        free = sorted(set(range(self.pool.num_blocks)) - set(self.holders()))
        if free:
            held = sorted(set(self.holders()) - set(self.tables[owner]))
            with pytest.raises(ValueError, match="is free"):
                self.pool.share(owner, [*held, data.draw(st.sampled_from(free))])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        before = set(self.holders())
        self.pool.release(owner)
        del self.tables[owner], self.handed_out[owner]
        self.returned += len(before - set(self.holders()))

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        holders = self.holders()
        assert self.pool.tables == self.tables
        assert all(self.pool.tables[owner] is table for owner, table in self.handed_out.items())
        assert self.pool.ref_counts == [holders[block] for block in range(self.pool.num_blocks)]
        assert self.pool.num_free == self.pool.num_blocks - len(holders)
        assert (self.pool.allocated, self.pool.freed, self.pool.shared) == (self.taken, self.returned, self.added)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)


def used_pool() -> BlockPool:
    """Six blocks: a holds 0 and 1, b holds the shared block 0 and 2 of its own."""
    pool = BlockPool(6, 4)
    pool.open("a")
    pool.grow("a", 2)
    pool.open("b")
    pool.share("b", pool.tables["a"][:1])
    pool.grow("b", 1)
    pool.check()
    return pool


def leak(pool: BlockPool) -> None:
    pool._free.pop()


def leak_a_table(pool: BlockPool) -> None:
    del pool.tables["a"]


def double_free(pool: BlockPool) -> None:
    pool._free.append(pool._free[0])


def free_while_held(pool: BlockPool) -> None:
    pool._free.append(pool.tables["a"][1])


def count_too_high(pool: BlockPool) -> None:
    pool.ref_counts[pool.tables["a"][0]] += 1


def count_too_low(pool: BlockPool) -> None:
    pool.ref_counts[pool.tables["a"][0]] -= 1


def twice_in_one_table(pool: BlockPool) -> None:
    block = pool.tables["a"][1]
    pool.tables["a"].append(block)
    pool.ref_counts[block] += 1


def in_a_second_table_uncounted(pool: BlockPool) -> None:
    pool.tables["b"].append(pool.tables["a"][1])


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (leak, "leaked"),
        (leak_a_table, "counts"),
        (double_free, "free list twice"),
        (free_while_held, "free and in use"),
        (count_too_high, "counts 3 references and 2 tables"),
        (count_too_low, "counts 1 references and 2 tables"),
        (twice_in_one_table, "holds a block twice"),
        (in_a_second_table_uncounted, "counts 1 references and 2 tables"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_check_catches(corrupt, message) -> None:
    pool = used_pool()
    corrupt(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()


def test_a_failed_grow_takes_nothing() -> None:
    pool = used_pool()
    before = list(pool._free)
    with pytest.raises(OutOfBlocks):
        pool.grow("a", pool.num_free + 1)
    assert pool._free == before
    pool.check()


def test_a_released_head_is_reused_last() -> None:
    """Blocks come back last first, and the one that came back last is taken first."""
    pool = BlockPool(4, 1)
    table = pool.open("a")
    pool.grow("a", 3)
    held = list(table)
    pool.release("a")
    pool.open("b")
    pool.grow("b", 3)
    assert pool.tables["b"] == held


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(3, 16).blocks_for(tokens) == blocks


def test_capacity_counts_tokens() -> None:
    assert BlockPool(3, 16).capacity == 48


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 1)])
def test_a_pool_of_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least one block of one token"):
        BlockPool(num_blocks, block_size)
