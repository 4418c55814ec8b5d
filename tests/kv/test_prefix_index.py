"""Prefix indexes and the pool around them against brute force: what is found, what leaves, and every count."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from workbench.kv.caching_pool import INDEXES, CachingPool
from workbench.kv.eviction import EVICTION
from workbench.kv.pool import OutOfBlocks

WAYS = [(index, policy, size) for index in INDEXES for policy in EVICTION for size in (1, 4, 16)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return common


class Plain:
    """What a cache is, as plainly as can be: for every cached block the tokens up to its end, and when it was used."""

    def __init__(self) -> None:
        self.content: dict[int, tuple[Any, ...]] = {}
        """By block: its namespace and all tokens from the first to its last."""
        self.last_held: dict[int, int] = {}
        self.now = 0

    def longest(self, salt: str, tokens: list[int], size: int) -> int:
        """Blocks of the longest common head with anything cached: every entry is compared, token by token."""
        return max((_common(said, tokens) // size for of, *said in self.content.values() if of == salt), default=0)

    def longest_part(self, salt: str, tokens: list[int], size: int, blocks: int) -> int:
        """Tokens that any cached block shares with what comes after the first ``blocks`` blocks."""
        begin, best = blocks * size, 0
        for other, *said in self.content.values():
            if other == salt and len(said) == begin + size and said[:begin] == tokens[:begin]:
                best = max(best, _common(said[begin:], tokens[begin:]))
        return best

    def ends(self, in_use: set[int], size: int) -> list[int]:
        """Cached blocks that nobody uses and that no cached block comes after."""
        inner = {said[:-size] for said in self.content.values()}
        return [block for block, said in self.content.items() if block not in in_use and said not in inner]


class Checked:
    """A pool under random use. After every operation the pool's own check holds and the plain cache agrees."""

    def __init__(self, seed: int, index: str, policy: str, size: int, oracle: bool = True) -> None:
        self.draw = Random(seed)
        self.size, self.oracle, self.policy = size, oracle, policy
        self.pool = CachingPool(self.draw.choice([5, 12, 40]), size, index, policy, partial=seed % 2 == 1)
        self.plain = Plain()
        self.live: dict[str, tuple[str, list[int], int]] = {}
        self.said: list[list[int]] = []
        self.seen = {"hits": 0, "parts": 0, "evicted": 0, "cancels": 0, "duplicates": 0, "resets": 0, "refused": 0}
        self.number = 0
        evict = self.pool.index.evict

        def watched() -> int:
            block = evict()
            self._leaves(block)
            return block

        self.pool.index.evict = watched  # type: ignore[method-assign]

    def operate(self) -> None:
        chance, draw = self.draw.random(), self.draw
        if chance < 0.3 and len(self.live) < 6:
            self.arrive()
        elif self.live:
            name = draw.choice(list(self.live))
            if chance < 0.75:
                self.compute(name)
            elif chance < 0.995:
                self.leave(name)
            else:
                self.reset()
        self.check()

    def arrive(self) -> None:
        draw, pool, size = self.draw, self.pool, self.size
        tokens = [draw.randrange(3) for _ in range(draw.randint(1, 8 * size))]
        if self.said and draw.random() < 0.85:
            said = draw.choice(self.said)
            said = said[: draw.choice([len(said), draw.randint(0, len(said))])]
            tokens[: len(said)] = said
        salt = draw.choice(["", "", "a"])
        name = str(self.number)
        self.number += 1
        pool.enroll(name, salt)
        limit = draw.choice([(len(tokens) - 1) // size, 99])
        head = pool.match(name, tokens, limit)
        if self.oracle:
            assert len(head) == min(limit, self.plain.longest(salt, tokens, size)), "the longest common head is found"
            for number, block in enumerate(head, 1):
                assert self.plain.content[block] == (salt, *tokens[: number * size]), "these are its own tokens"
        part = pool.match_part(name, len(head), len(tokens) - 1 - len(head) * size)
        if part is not None and self.oracle:
            told = (salt, *tokens[: len(head) * size + part.num_tokens])
            assert self.plain.content[part.block][: len(told)] == told, "the part is of its own tokens"
        if self.oracle and pool.index.partial and len(head) == min(limit, self.plain.longest(salt, tokens, size)) < 64:
            wanted = min(self.plain.longest_part(salt, tokens, size, len(head)), len(tokens) - 1 - len(head) * size)
            assert (part.num_tokens if part else 0) == max(0, min(wanted, size - 1)), "the longest part is found"
        need = pool.blocks_for(len(tokens)) - len(head)
        wanted = [*head, part.block] if part else head
        if need + pool.num_unheld(wanted) > pool.num_available or draw.random() < 0.05:
            pool.dismiss(name)  # it waits and is cancelled, or would not fit
            self.seen["refused"] += 1
            return
        pool.open(name)
        pool.adopt(name, head)
        if part is not None:
            pool.lend(name, part)
            self.seen["parts"] += 1
        pool.grow(name, need)
        self.seen["hits"] += len(head)
        if part is not None:
            pool.check()
            assert self.plain.content[part.block], "what is copied stays until it is given back"
            self._give_back(pool.tables[pool._lent[-1]])
        self.live[name] = salt, tokens, len(head) * size
        self.said = [*self.said[-20:], tokens]

    def compute(self, name: str) -> None:
        pool, (salt, tokens, computed) = self.pool, self.live[name]
        if computed == len(tokens) and len(tokens) < 12 * self.size and pool.num_available:
            tokens.append(self.draw.randrange(3))
            if pool.blocks_for(len(tokens)) > len(pool.tables[name]):
                pool.grow(name, 1)
        computed = min(len(tokens), computed + self.draw.randint(1, 3 * self.size))
        before = list(pool.tables[name])
        held = pool.trails[name].epoch == pool.epoch
        pool.publish(name, tokens, computed)
        self.live[name] = salt, tokens, computed
        table = pool.tables[name]
        for number in range(computed // self.size if held else 0):
            self.seen["duplicates"] += table[number] != before[number]
            told = (salt, *tokens[: (number + 1) * self.size])
            assert self.plain.content.setdefault(table[number], told) == told
        assert table[computed // self.size :] == before[computed // self.size :]

    def _give_back(self, lent: list[int]) -> None:
        others = {block for table in self.pool.tables.values() if table is not lent for block in table}
        for block in reversed(lent):
            if block not in others:
                self.plain.now += 1
                self.plain.last_held[block] = self.plain.now
        self.pool.take_back()

    def leave(self, name: str) -> None:
        """It ends, is cancelled or is preempted: for the pool all are one."""
        table = self.pool.tables[name]
        self.seen["cancels"] += self.live[name][2] < len(self.live[name][1])
        del self.live[name]
        others = {block for other, held in self.pool.tables.items() if other != name for block in held}
        for block in reversed(table):
            if block not in others:
                self.plain.now += 1
                self.plain.last_held[block] = self.plain.now
        self.pool.release(name)
        self.pool.dismiss(name)

    def reset(self) -> None:
        self.pool.reset()
        self.plain.content.clear()
        self.seen["resets"] += 1
        assert self.pool.num_cached == self.pool.index.num_blocks == 0

    def check(self) -> None:
        pool = self.pool
        pool.check()
        in_use = {block for table in pool.tables.values() for block in table}
        assert pool.num_free + pool.num_cached + len(in_use) == pool.num_blocks
        assert sorted(pool.index.blocks()) == sorted(self.plain.content)

    def _leaves(self, block: int) -> None:
        in_use = {held for table in self.pool.tables.values() for held in table}
        assert block not in in_use, "what is in use stays"
        if self.oracle:
            ends = self.plain.ends(in_use, self.size)
            assert block in ends, "nothing is cut off from its head"
            if self.policy == "lru":
                longest = min(ends, key=lambda end: self.plain.last_held[end])
                assert block == longest, "the longest unused leaves first"
        del self.plain.content[block]
        self.seen["evicted"] += 1


@pytest.mark.parametrize(("index", "policy", "size"), WAYS)
def test_random_use_agrees_with_brute_force(index: str, policy: str, size: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(4):
        checked = Checked(seed, index, policy, size)
        for _ in range(250):
            checked.operate()
        for name, count in checked.seen.items():
            seen[name] = seen.get(name, 0) + count
    assert seen["hits"] > 15 and seen["evicted"] > 20 and seen["cancels"] > 10, seen
    assert seen["parts"] > 10 or size == 1, seen


@pytest.mark.parametrize("size", [1, 4, 16])
def test_some_compute_what_others_compute_too(size: int) -> None:
    """Duplicates are rare, and must be among what is shown."""
    found = 0
    for seed in range(10):
        checked = Checked(seed, "radix", "lru", size)
        for _ in range(200):
            checked.operate()
        found += checked.seen["duplicates"]
    assert found >= 3


@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_a_hundred_thousand_operations(proof: Any) -> None:
    seen: dict[str, int] = {}
    total = 0
    for seed, (index, policy, size) in enumerate(WAYS * 4):
        checked = Checked(seed, index, policy, size, oracle=seed < len(WAYS))
        for _ in range(1400):
            checked.operate()
            total += 1
        for name, count in checked.seen.items():
            seen[name] = seen.get(name, 0) + count
    assert total >= 100_000
    told = ", ".join(f"{count:,} {name}" for name, count in seen.items())
    proof.report("free + cached + in use = total, locks and order right after every operation", f"{total:,}: {told}")


def test_memory_is_flat() -> None:
    """Ten times as many requests leave no more behind: what is kept depends on the pool alone."""
    for index in INDEXES:
        for policy in EVICTION:
            pool, draw = CachingPool(64, 4, index, policy), Random(1)
            sizes = []
            for round_ in range(4):
                for number in range(60 if round_ == 0 else 300):
                    tokens = [draw.randrange(50) for _ in range(draw.randint(4, 60))]
                    name = f"{round_} {number}"
                    pool.enroll(name, salt=name)  # a namespace each: they must go too
                    pool.open(name)
                    pool.adopt(name, pool.match(name, tokens, 99))
                    pool.grow(name, pool.blocks_for(len(tokens)))
                    pool.publish(name, tokens, len(tokens))
                    pool.release(name)
                    pool.dismiss(name)
                heap = getattr(pool.index.order, "_heap", [])
                nodes = sum(1 for _ in pool.index.nodes())
                sizes.append([len(pool.index.roots), nodes, len(pool.trails), len(heap)])
            assert max(size[0] for size in sizes) <= 64 and max(size[1] for size in sizes) <= 64, sizes
            assert all(size[2] == 0 and size[3] <= 2 * 64 + 65 for size in sizes), sizes
            pool.check()


def test_both_indexes_find_and_give_up_the_same() -> None:
    """The same use, lru and whole blocks: a tree and a chain differ in how they look, not in what they find."""
    for size in (1, 4):
        seen = []
        for index in INDEXES:
            checked = Checked(5, index, "lru", size)
            for _ in range(400):
                checked.operate()
            seen.append((checked.seen, checked.pool.evicted, checked.pool.num_cached))
        assert seen[0] == seen[1]


def served(pool: CachingPool, name: str, tokens: list[int], salt: str = "") -> int:
    """A request from arrival to end; the blocks it did not have to compute."""
    pool.enroll(name, salt)
    pool.open(name)
    head = pool.match(name, tokens, (len(tokens) - 1) // pool.block_size)
    pool.adopt(name, head)
    pool.grow(name, pool.blocks_for(len(tokens)) - len(head))
    pool.publish(name, tokens, len(tokens))
    pool.release(name)
    pool.dismiss(name)
    pool.check()
    return len(head)


@pytest.mark.parametrize("index", INDEXES)
def test_policies_differ_in_who_leaves(index: str) -> None:
    """a is used often but long ago, b came first, c last: each policy gives up another."""
    found = {}
    for policy in EVICTION:
        pool = CachingPool(7, 1, index, policy)
        a, b, c = [1, 1], [2, 2], [3, 3]
        for name, tokens in (("b", b), ("a", a), ("a2", a), ("a3", a), ("b2", b), ("c", c)):
            served(pool, name, tokens)
        served(pool, "big", [9, 9, 9])  # takes the free block and two others
        kept = {}
        for name, tokens in (("a", a), ("b", b), ("c", c)):
            pool.enroll(name)
            kept[name] = len(pool.match(name, tokens, 2))
            pool.dismiss(name)
        found[policy] = kept
    assert found["lru"]["a"] == 0 and found["lru"]["b"] == found["lru"]["c"] == 2
    assert found["fifo"]["b"] == 0 and found["fifo"]["a"] == found["fifo"]["c"] == 2
    assert found["lfu"]["a"] == 2 and found["lfu"]["c"] < 2


@pytest.mark.parametrize("index", INDEXES)
def test_more_than_there_is_is_refused_and_takes_nothing(index: str) -> None:
    pool = CachingPool(3, 2, index)
    served(pool, "a", [1] * 6)
    pool.enroll("b")
    pool.open("b")
    pool.adopt("b", pool.match("b", [1] * 6, 2))
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks and 1 are available"):
        pool.grow("b", 2)
    assert pool.num_cached == 1 and pool.evicted == 0
    pool.check()


def test_a_split_costs_nobody_their_place() -> None:
    """The front of a long branch is used again; the rear is still the first to leave, before what came later."""
    pool = CachingPool(8, 1, "radix")
    served(pool, "long", [1, 2, 3, 4])
    served(pool, "later", [7, 8])
    assert served(pool, "front", [1, 2, 9]) == 2
    assert len(list(pool.index.nodes())) == 4
    served(pool, "big", [5, 5, 5])
    pool.enroll("x")
    assert pool.match("x", [1, 2, 3, 4], 4) and len(pool.match("x", [1, 2, 3, 4], 4)) == 2, "the rear has left"
    pool.dismiss("x")
    pool.enroll("y")
    assert len(pool.match("y", [7, 8], 2)) == 2, "what came later has not"


def test_the_platform_packs_tokens_alike() -> None:
    from workbench.kv.prefix_index import pack

    assert pack([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0]), sys.byteorder
