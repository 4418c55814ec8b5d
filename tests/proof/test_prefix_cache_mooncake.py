"""Hit rates of Mooncake's conversation trace (512-token blocks, 12,031 requests): the most that can be found, and what
one instance of a given size finds with lru. The trace's hash ids stand for the blocks' tokens."""

from __future__ import annotations

import pytest

from tests.conftest import Proof
from tests.measure.test_trace_files import real
from workbench.kv.caching_pool import INDEXES, CachingPool
from workbench.measure.trace_files import Row, read_trace

LIMITED = {1_000: 0.045, 5_000: 0.112, 10_000: 0.212, 30_000: 0.326, 50_000: 0.355}
"""Hit rate by pool size; measured once with a simulator that shares nothing with this one."""


def hit_rate(rows: list[Row], num_blocks: int, index: str, policy: str = "lru") -> float:
    """Share of all blocks that were cached when their request came. One request after the other."""
    pool = CachingPool(num_blocks, 1, index, policy)
    asked = hit = 0
    for number, row in enumerate(rows):
        assert row.hash_ids is not None
        name, ids = str(number), list(row.hash_ids)
        pool.enroll(name)
        head = pool.match(name, ids, len(ids))
        pool.open(name)
        pool.adopt(name, head)
        pool.grow(name, len(ids) - len(head))
        pool.publish(name, ids, len(ids))
        pool.release(name)
        pool.dismiss(name)
        asked += len(ids)
        hit += len(head)
    pool.check()
    return hit / asked


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("index", INDEXES)
def test_hit_rates_of_the_conversation_trace(index: str, proof: Proof) -> None:
    rows = read_trace(real("mooncake_conversation.jsonl.gz")).rows
    distinct = len({number for row in rows for number in row.hash_ids or ()})
    without_limit = hit_rate(rows, distinct, index)
    found = {size: hit_rate(rows, size, index) for size in LIMITED}
    told = ", ".join(f"{size // 1000}k blocks {rate:.3f}" for size, rate in found.items())
    others = ", ".join(f"{policy} {hit_rate(rows, 10_000, index, policy):.3f}" for policy in ("lfu", "fifo"))
    proof.report(f"block hit rate of {index} on Mooncake's conversations", f"{without_limit:.4f}; {told}; 10k {others}")
    assert without_limit == pytest.approx(0.366, abs=0.005)
    for size, rate in LIMITED.items():
        assert found[size] == pytest.approx(rate, abs=0.01), size
