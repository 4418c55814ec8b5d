"""What a prefix index costs the processor: seconds to enter a prompt and to find it again, and bytes of CPU memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.kv.caching_pool import CachingPool
from workbench.kv.hash_chain import HashIndex
from workbench.kv.prefix_index import PrefixIndex
from workbench.measure.timing import Timing, time_call


@dataclass(frozen=True, slots=True)
class IndexCost:
    """Of one prompt of ``num_tokens`` tokens."""

    prefix_index: str
    block_size: int
    num_tokens: int
    enter: Timing
    """Seconds to look for a prompt that nobody has sent, and to publish its blocks."""
    find: Timing
    """Seconds to find all of it again, to hold it and to let go."""
    bytes: int
    """Of the index: nodes, tokens or digests, block numbers, links. Not of the keys and values."""

    @property
    def enter_ns(self) -> float:
        """Nanoseconds a token."""
        return self.enter.median / self.num_tokens * 1e9

    @property
    def find_ns(self) -> float:
        return self.find.median / self.num_tokens * 1e9


def index_cost(prefix_index: str, block_size: int, token_ids: Sequence[int], repeats: int = 5) -> IndexCost:
    """Measured on the engine's own pool, without a model. ``prefix_index``: ``radix`` or ``hash``."""
    num_blocks = -(-len(token_ids) // block_size)
    pools = [CachingPool(num_blocks, block_size, prefix_index) for _ in range(repeats + 1)]
    for pool in pools:
        # Taking the blocks is the pool's affair with or without an index.
        pool.enroll("first")
        pool.open("first")
        pool.grow("first", num_blocks)
    waiting = iter(pools)

    def enter() -> None:
        pool = next(waiting)
        pool.match("first", token_ids, num_blocks)
        pool.publish("first", token_ids, len(token_ids))

    def find() -> None:
        pool.enroll("again")
        pool.open("again")
        pool.adopt("again", pool.match("again", token_ids, num_blocks))
        pool.release("again")
        pool.dismiss("again")

    entered = time_call(enter, warmup=1, repeats=repeats)
    pool = pools[-1]
    found = time_call(find, warmup=1, repeats=repeats)
    return IndexCost(prefix_index, block_size, len(token_ids), entered, found, index_bytes(pool.index))


def index_bytes(index: PrefixIndex) -> int:
    """Bytes of CPU memory that an index takes, as Python counts them."""
    nodes = [*index.roots.values(), *index.nodes()]
    size = sum(
        sys.getsizeof(part) for node in nodes for part in (node, node.key, node.tokens, node.blocks, node.children)
    )
    # A chain of digests looks its nodes up in one table.
    return size + (sys.getsizeof(index.table) if isinstance(index, HashIndex) else 0)
