"""PrefixIndex: where the keys and values of a head of tokens lie, if some request has computed them before.

An index knows whole blocks only. It lives in CPU memory and holds block ids; what is in the blocks is the runner's.
`workbench.kv.radix` finds blocks by comparing tokens, `workbench.kv.hash_chain` by a digest of them and of all before
them. What they have in common stands here:

- *Lock.* A request holds the nodes from the root to the end of its trail, and each counts its holders. What is locked
  stays. A node's lock is never less than a child's, so below an unlocked node nothing is locked.
- *Recency.* The moment of a node's use is when its last holder lets go, not when it was found: until then it cannot
  leave anyway. Looking (`match`) uses nothing.
- *Eviction.* Only an unlocked leaf gives a block up, its last one first, so nothing is ever cut off from the root.
- *Within a block.* An index made with ``partial`` also finds the block whose first tokens go on where the whole blocks
  of a match end (`part`). It is not shared but copied, and the copy is written on from there (copy on write).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from workbench.kv.eviction import EVICTION, Node

TOKEN_BYTES = 4
MAX_TOKEN_ID = (1 << 32) - 1
"""The largest token id that an index can hold."""
MAX_PART_CANDIDATES = 64
"""Blocks that `PrefixIndex.part` compares, the newest first: thousands may go on from one head."""


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers: short, and compared and hashed as plain bytes."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def common_head(one: Sequence[int], other: Sequence[int], most: int, width: int = 1) -> int:
    """How many leading units of ``width`` elements, ``most`` at most, are equal in both.

    Halving compares each element once, and by machine words: a long equal head costs next to nothing. Both must have
    ``most`` units.
    """
    if one[: most * width] == other[: most * width]:
        return most
    equal, differs = 0, most
    while differs - equal > 1:
        middle = (equal + differs) // 2
        if one[equal * width : middle * width] == other[equal * width : middle * width]:
            equal = middle
        else:
            differs = middle
    return equal


class Part(NamedTuple):
    """A cached block of which a request can use the first ``num_tokens`` tokens, in a copy of its own."""

    block: int
    num_tokens: int
    """At least one and less than a block."""
    num_blocks: int
    """Whole blocks before it."""
    tokens: bytes
    """All tokens of the block, packed."""


class Trail:
    """One request's way through an index."""

    __slots__ = ("digests", "end", "epoch", "held", "own", "space", "tokens")

    def __init__(self, space: bytes, epoch: int) -> None:
        self.space = space
        """The namespace: blocks of another are never found."""
        self.tokens = bytearray()
        """The request's tokens, packed, as far as they were looked at."""
        self.digests: list[bytes] = []
        """One for each full block, where the index hashes."""
        self.held = 0
        """Blocks that the request holds, from the first on."""
        self.end: Node | None = None
        """The deepest node that it holds; None: it holds nothing."""
        self.own: Node | None = None
        """The node that it made, to which it may add."""
        self.epoch = epoch
        """The pool's, when the request began to compute: what it computed before a reset is not published after."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """``token_ids``: all of the request's tokens; those not known yet are added."""
        known = len(self.tokens) // TOKEN_BYTES
        if known < len(token_ids):
            self.tokens += pack(token_ids[known:])


class PrefixIndex(ABC):
    """Blocks of ``block_size`` tokens by the tokens in and before them. ``eviction_policy``: a key of `EVICTION`.

    ``partial``: keep what `part` needs.
    """

    name: str

    def __init__(self, block_size: int, eviction_policy: str = "lru", partial: bool = False) -> None:
        self.block_size = block_size
        self.eviction_policy = eviction_policy
        self.partial = partial
        self.clear()

    def clear(self) -> None:
        """Forgets everything. Trails that hold something must be dropped by the caller."""
        self.order = EVICTION[self.eviction_policy]()
        self.roots: dict[bytes, Node] = {}
        """By namespace; one that holds nothing is not kept."""
        self.num_blocks = 0
        self._born = 0

    @abstractmethod
    def match(self, trail: Trail, limit: int) -> list[int]:
        """The blocks that hold the head of the trail's tokens, ``limit`` at most. Changes nothing."""

    @abstractmethod
    def hold(self, trail: Trail, num_blocks: int) -> None:
        """Lets a trail that holds nothing hold so many blocks of those that `match` found."""

    @abstractmethod
    def publish(self, trail: Trail, blocks: Sequence[int]) -> list[int]:
        """Enters the blocks that come after those held, full of the trail's tokens, and lets the trail hold them.

        Returns the block that the index keeps for each: another than the one given where it had one already.
        """

    def part(self, trail: Trail, num_blocks: int, most: int) -> Part | None:
        """The block after the first ``num_blocks`` that shares most tokens, ``most`` at most, with what the trail goes
        on with. None where none shares any: then the next token differs everywhere.

        ``num_blocks``: as many as `match` finds. Of those that share as many, the newest. Needs ``partial``.
        """
        begin = num_blocks * self.block_size * TOKEN_BYTES
        most = min(most, self.block_size - 1, (len(trail.tokens) - begin) // TOKEN_BYTES)
        if most <= 0:
            return None
        wanted, best = bytes(trail.tokens[begin : begin + most * TOKEN_BYTES]), None
        for block, tokens in islice(self._continuations(trail, num_blocks), MAX_PART_CANDIDATES):
            found = common_head(wanted, tokens, most, TOKEN_BYTES)
            if found > (best.num_tokens if best else 0):
                best = Part(block, found, num_blocks, tokens)
        return best

    @abstractmethod
    def _continuations(self, trail: Trail, num_blocks: int) -> Iterator[tuple[int, bytes]]:
        """The blocks right after the trail's first ``num_blocks`` and their packed tokens, the newest first."""

    def release(self, trail: Trail) -> None:
        """Lets go of all that the trail holds, the deepest node first."""
        node = trail.end
        while node is not None and node.parent is not None:
            node.lock -= 1
            if node.lock == 0:
                self.order.unlocked(node)
            node = node.parent
        trail.end = trail.own = None
        trail.held = 0

    def evict(self) -> int:
        """Gives up one block, the last of the leaf whose turn it is. Raises LookupError where all are held."""
        node = self.order.victim()
        block = node.blocks.pop()
        self.num_blocks -= 1
        if node.blocks:
            del node.tokens[-TOKEN_BYTES * self.block_size :]
            return block
        self.order.removed(node)
        parent = node.parent
        assert parent is not None
        self._unlink(node)
        parent.num_children -= 1
        if parent.num_children == 0:
            if parent.parent is None:
                del self.roots[parent.key]
            elif parent.lock == 0:
                self.order.bared(parent)
        return block

    @abstractmethod
    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, each after its parent."""

    def blocks(self) -> list[int]:
        return [block for node in self.nodes() for block in node.blocks]

    def check(self, trails: Collection[Trail], ref_counts: Sequence[int]) -> None:
        """Raises AssertionError unless locks, order, links and counts are right.

        ``trails``: all there are. ``ref_counts``: the number of tables that hold each block.
        """
        locks: dict[int, int] = {}
        for trail in trails:
            node, blocks = trail.end, 0
            while node is not None and node.parent is not None:
                locks[id(node)] = locks.get(id(node), 0) + 1
                blocks += len(node.blocks)
                node = node.parent
            require(blocks == trail.held, f"a request holds {trail.held} blocks and its trail passes {blocks}")
            require(node is None or self.roots.get(trail.space) is node, "a trail leads to the root of its namespace")
        nodes = list(self.nodes())
        seen: set[int] = set()
        children: dict[int, int] = {}
        for node in nodes:
            require(bool(node.blocks), "no node is empty")
            require(node.parent is not None, "only roots have no parent")
            require(
                node.lock == locks.get(id(node), 0), f"a node counts {node.lock} holders, not {locks.get(id(node))}"
            )
            children[id(node.parent)] = children.get(id(node.parent), 0) + 1
            for block in node.blocks:
                require(block not in seen, f"block {block} stands in the index twice")
                seen.add(block)
                told = f"block {block} is held by {ref_counts[block]} tables and its node by {node.lock} requests"
                require(ref_counts[block] == node.lock, told)
        for node in [*nodes, *self.roots.values()]:
            require(node.num_children == children.get(id(node), 0), "children are counted")
        require(all(root.num_children for root in self.roots.values()), "no root is kept for nothing")
        require(len(seen) == self.num_blocks, f"the index holds {len(seen)} blocks and counts {self.num_blocks}")
        self.order.check([node for node in nodes if node.lock == 0])

    @abstractmethod
    def _unlink(self, node: Node) -> None:
        """Takes an empty leaf out of the index."""

    def _root(self, space: bytes) -> Node:
        root = self.roots.get(space)
        if root is None:
            root = self.roots[space] = Node(None, space, [], 0)
        return root

    def _new(self, parent: Node, key: bytes, blocks: list[int]) -> Node:
        """A node that one request holds, below ``parent``, which it holds too."""
        self._born += 1
        node = Node(parent, key, blocks, self._born)
        node.lock = 1
        parent.num_children += 1
        self.num_blocks += len(blocks)
        return node

    def _lock(self, node: Node) -> None:
        """Somebody who did not make the node holds it: that is a use."""
        if node.lock == 0:
            self.order.locked(node)
        node.lock += 1
        node.uses += 1

    def _hold_path(self, trail: Trail, end: Node, num_blocks: int) -> None:
        """Locks everything from ``end`` to the root for a trail that held nothing."""
        node = end
        while node.parent is not None:
            self._lock(node)
            node = node.parent
        trail.end, trail.held = end, num_blocks


def require(truth: bool, message: str) -> None:
    # Not a bare assert: the checks must hold under `python -O` too.
    if not truth:
        raise AssertionError(message)
