"""CachingPool: a BlockPool that keeps what was computed, until the room is needed.

A block is in one of three states: *free* (nothing of use lies in it), *in use* (some table holds it) or *cached* (no
table holds it, but the index knows what is in it). In use, too, a full block stands in the index as soon as it is
computed, so others may share it at once. ``free + cached + in use = total``.

Who asks for blocks gets the free ones first; then cached ones are given up, as the eviction policy says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workbench.config import EngineConfig
from workbench.kv.hash_chain import HashIndex
from workbench.kv.namespace import namespace
from workbench.kv.pool import BlockPool, OutOfBlocks
from workbench.kv.prefix_index import TOKEN_BYTES, Part, PrefixIndex, Trail, require
from workbench.kv.radix import RadixIndex

INDEXES: dict[str, type[PrefixIndex]] = {"radix": RadixIndex, "hash": HashIndex}


def open_pool(config: EngineConfig, fields: Mapping[str, str] | None = None) -> BlockPool:
    """The pool that a config asks for: a `CachingPool` with prefix caching."""
    assert config.num_kv_blocks is not None
    if not config.enable_prefix_caching:
        return BlockPool(config.num_kv_blocks, config.block_size)
    index = config.prefix_index or "radix"
    partial = config.prefix_partial_reuse
    return CachingPool(config.num_kv_blocks, config.block_size, index, config.eviction_policy, fields, partial)


class PrefixStats(NamedTuple):
    """Counted once for each request, when it is first admitted: computing again after a preemption is no query.

    The further answers to one prompt (``n``) take it from the first and ask nothing.
    """

    queries: int = 0
    """Requests."""
    query_tokens: int = 0
    hit_tokens: int = 0
    query_blocks: int = 0
    """Full blocks of the prompts."""
    hit_blocks: int = 0
    """Whole blocks; tokens of a part of a block are counted in ``hit_tokens`` alone."""


class CachingPool(BlockPool):
    """``fields``: what the keys and values depend on besides the tokens (`workbench.kv.namespace`).

    ``partial``: also find blocks of which only the first tokens can be used (`match_part`).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_index: str = "radix",
        eviction_policy: str = "lru",
        fields: Mapping[str, str] | None = None,
        partial: bool = False,
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.index = INDEXES[prefix_index](block_size, eviction_policy, partial)
        self.fields = dict(fields or {})
        self.trails: dict[str, Trail] = {}
        self.stats = PrefixStats()
        self.epoch = 0
        """Rises with every reset."""
        self._num_cached = 0
        self._indexed = bytearray(num_blocks)
        self._lent: list[str] = []

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_available(self) -> int:
        return len(self._free) + self._num_cached

    def is_kept(self, block: int) -> bool:
        """Whether anything of use lies in the block."""
        return self.ref_counts[block] > 0 or bool(self._indexed[block])

    # A request is known from its arrival to its end; it has a block table only while it runs.

    def enroll(self, owner: str, salt: str = "") -> None:
        """A request arrives. ``salt``: it shares blocks only with requests of the same salt."""
        self.trails[owner] = Trail(namespace({**self.fields, "block_size": str(self.block_size)}, salt), self.epoch)

    def dismiss(self, owner: str) -> None:
        """The request has ended; its table is closed already."""
        self.trails.pop(owner, None)

    def match(self, owner: str, token_ids: Sequence[int], limit: int) -> list[int]:
        """Cached or shared blocks that hold the head of the request's tokens, ``limit`` at most. Takes nothing."""
        trail = self.trails[owner]
        trail.extend(token_ids)
        return self.index.match(trail, limit)

    def match_part(self, owner: str, num_blocks: int, most: int) -> Part | None:
        """A block of which the request can use the first tokens, ``most`` at most, after the ``num_blocks`` found."""
        if not self.index.partial or self.block_size == 1:
            return None
        return self.index.part(self.trails[owner], num_blocks, most)

    def num_unheld(self, blocks: Sequence[int]) -> int:
        """How many of the blocks would be taken from the available ones."""
        return sum(1 for block in blocks if self.ref_counts[block] == 0)

    def adopt(self, owner: str, blocks: Sequence[int]) -> None:
        """Begins the empty table of ``owner`` with blocks that `match` found, none where it found nothing."""
        trail = self.trails[owner]
        trail.epoch = self.epoch
        self.index.hold(trail, len(blocks))
        self._reference(owner, blocks)
        self.shared += len(blocks)

    def lend(self, owner: str, part: Part) -> None:
        """Holds the block of ``part`` until `take_back`, so that it can be copied: as if a request had adopted it.

        ``owner`` has adopted the whole blocks before it.
        """
        reader = f"{owner} reads block {part.block}"
        while reader in self.trails:
            reader += "'"  # requests may have any name
        trail, of = Trail(self.trails[owner].space, self.epoch), self.trails[owner]
        trail.tokens = of.tokens[: part.num_blocks * self.block_size * TOKEN_BYTES] + part.tokens
        trail.digests = of.digests[: part.num_blocks]
        self.trails[reader] = trail
        self.open(reader)
        self.index.hold(trail, part.num_blocks + 1)
        self._reference(reader, [*self.tables[owner][: part.num_blocks], part.block])
        self._lent.append(reader)

    def take_back(self) -> None:
        """The copies are made, or never will be: what was lent is held no longer."""
        while self._lent:
            reader = self._lent.pop()
            self.release(reader)
            self.dismiss(reader)

    def follow(self, owner: str, donor: str, num_blocks: int, token_ids: Sequence[int]) -> None:
        trail, other = self.trails[owner], self.trails[donor]
        trail.extend(token_ids)
        # What the donor may not publish after a reset, those who share it may not publish either.
        trail.epoch = other.epoch
        if other.held >= num_blocks:
            self.index.hold(trail, num_blocks)
        self._reference(owner, self.tables[donor][:num_blocks])
        self.shared += num_blocks

    def publishes(self, owner: str) -> bool:
        """Whether what the running request computes can be found by others: not if it began before a reset."""
        return self.trails[owner].epoch == self.epoch

    def publish(self, owner: str, token_ids: Sequence[int], num_computed: int) -> None:
        """Enters the full blocks of the first ``num_computed`` tokens into the index.

        Where the index has the same tokens already, the table is pointed to its block and the own copy is freed.
        """
        trail = self.trails[owner]
        full = num_computed // self.block_size
        if full <= trail.held or not self.publishes(owner):
            return
        trail.extend(token_ids)
        table, begin = self.tables[owner], trail.held
        own = table[begin:full]
        kept = self.index.publish(trail, own)
        for place, (block, canonical) in enumerate(zip(own, kept, strict=True), begin):
            if canonical == block:
                self._indexed[block] = 1
                continue
            # First the table names the other block, then its own goes: it is never without.
            if self.ref_counts[canonical] == 0:
                self._num_cached -= 1
            self.ref_counts[canonical] += 1
            self.shared += 1
            table[place] = canonical
            self._drop(block)

    def count_query(self, num_tokens: int, hit_blocks: int, hit_tokens: int) -> None:
        size, stats = self.block_size, self.stats
        self.stats = PrefixStats(
            stats.queries + 1,
            stats.query_tokens + num_tokens,
            stats.hit_tokens + hit_tokens,
            stats.query_blocks + num_tokens // size,
            stats.hit_blocks + hit_blocks,
        )

    def grow(self, owner: str, num_blocks: int) -> None:
        if num_blocks > self.num_available:
            raise OutOfBlocks(f"{owner!r} asked for {num_blocks} blocks and {self.num_available} are available")
        for _ in range(num_blocks - len(self._free)):
            block = self.index.evict()
            self._indexed[block] = 0
            self._num_cached -= 1
            self.evicted += 1
            self._free.append(block)
            self.freed += 1
        super().grow(owner, num_blocks)

    def release(self, owner: str) -> None:
        for block in reversed(self.tables.pop(owner)):
            self._drop(block)
        self.index.release(self.trails[owner])

    def reset(self) -> None:
        """Forgets what is cached, all of it: blocks in use stay with their holders, but nobody else finds them.

        What a running request computed before this is not published after it, either.
        """
        for block in self.index.blocks():
            self._indexed[block] = 0
            if self.ref_counts[block] == 0:
                self._free.append(block)
                self.freed += 1
        self.index.clear()
        for trail in self.trails.values():
            trail.end = trail.own = None
            trail.held = 0
        self._num_cached = 0
        self.epoch += 1

    def lost(self) -> None:
        self.reset()

    def check(self) -> None:
        """As `BlockPool.check`, with cached blocks, the index and its trails."""
        super().check()
        indexed = self.index.blocks()
        require(sorted(indexed) == [b for b in range(self.num_blocks) if self._indexed[b]], "indexed blocks are marked")
        cached = sum(1 for block in indexed if self.ref_counts[block] == 0)
        require(cached == self._num_cached, f"{cached} blocks are cached and {self._num_cached} are counted")
        self.index.check(self.trails.values(), self.ref_counts)
        for owner, table in self.tables.items():
            held = self.trails[owner].held
            path: list[int] = []
            node = self.trails[owner].end
            while node is not None:
                path[:0] = node.blocks
                node = node.parent
            require(path == table[:held], f"{owner!r} reads other blocks than those it holds in the index")
        for owner, trail in self.trails.items():
            require(owner in self.tables or trail.held == 0, f"{owner!r} has no table and holds cached blocks")

    def _reference(self, owner: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.ref_counts[block] == 0:
                self._num_cached -= 1
            self.ref_counts[block] += 1
        self.tables[owner].extend(blocks)

    def _drop(self, block: int) -> None:
        """One table fewer holds the block."""
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            if self._indexed[block]:
                self._num_cached += 1
            else:
                self._free.append(block)
                self.freed += 1
