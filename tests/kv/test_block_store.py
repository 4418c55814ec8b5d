"""BlockStore: what is kept for whom, and which blocks are to be copied."""

from __future__ import annotations

import pytest

from workbench.kv.block_store import HOST, POOL, BlockStore
from workbench.kv.pool import BlockPool


def filled() -> tuple[BlockPool, BlockStore]:
    pool, host = BlockPool(8, 4), BlockStore(HOST, 4, 4)
    pool.open("a")
    pool.grow("a", 3)
    return pool, host


def test_there_and_back() -> None:
    pool, host = filled()
    old = list(pool.tables["a"])
    moves = host.save("a", pool, 2)
    assert [(m.source, m.block, m.target, m.to) for m in moves] == [
        (POOL, block, HOST, kept) for block, kept in zip(old, host.tables["a"], strict=False)
    ]
    assert len(moves) == 2 and pool.tables["a"] == old, "the pool's table is the pool's affair"
    kept = list(host.tables["a"])
    pool.release("a")
    pool.open("b")
    pool.grow("b", 2)  # so that a comes back to other blocks
    pool.open("a")
    pool.grow("a", 3)
    back = host.restore("a", pool)
    assert [(m.source, m.block, m.target, m.to) for m in back] == [
        (HOST, block, POOL, to) for block, to in zip(kept, pool.tables["a"][:2], strict=True)
    ]
    assert (host.tables, host.num_free, host.restored) == ({}, 4, 2)
    host.check()


def test_what_does_not_fit_is_not_kept() -> None:
    pool, host = filled()
    pool.grow("a", 2)
    assert host.save("a", pool, 5) is None
    assert (host.tables, host.num_free) == ({}, 4)
    assert host.save("a", pool, 4) is not None and host.num_free == 0


def test_a_table_too_short_to_come_back_to_is_a_bug() -> None:
    pool, host = filled()
    host.save("a", pool, 3)
    pool.release("a")
    pool.open("a")
    pool.grow("a", 2)
    with pytest.raises(ValueError, match="needs 3 blocks in the pool and has 2"):
        host.restore("a", pool)
    assert len(host.tables["a"]) == 3, "nothing is lost"


def test_dropping_is_free_for_whom_nothing_is_kept() -> None:
    pool, host = filled()
    host.save("a", pool, 3)
    host.drop("nobody")
    host.drop("a")
    host.drop("a")
    assert (host.num_free, host.restored) == (4, 0)
    host.check()
