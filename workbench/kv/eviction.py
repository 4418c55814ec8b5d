"""Which cached blocks leave first (``eviction_policy``).

Blocks leave an index from the ends of its branches inwards: a block is of use only while everything before it is there.
So the node to give up next is always an unlocked leaf, and the policies differ in which.

- `LeastRecent` (lru): one doubly linked list through all unlocked nodes, the longest unused first. A node joins at the
  end when the last request that held it lets go, and a request lets go of its deepest node first. So a child always
  stands before its parent, the first node of the list is a leaf, and finding it costs nothing.
- `Ranked` (lfu, fifo): a heap of the unlocked leaves. An entry that is out of date is skipped when it comes up, and the
  heap is made anew when most entries are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Protocol


class Node:
    """Neighbouring blocks of one branch, held and used alike. A root has no parent and no blocks."""

    __slots__ = ("blocks", "born", "children", "key", "lock", "next", "num_children", "parent", "prev", "released",
                 "stamp", "tokens", "uses")  # fmt: skip

    def __init__(self, parent: Node | None, key: bytes, blocks: list[int], born: int) -> None:
        self.parent = parent
        self.key = key
        """How an index finds the node: below its parent, or among all nodes."""
        self.blocks = blocks
        self.tokens = bytearray()
        """Packed tokens of the blocks, where an index compares tokens."""
        self.children: dict[bytes, Node] = {}
        self.num_children = 0
        self.lock = 0
        """Requests that hold the node or anything below it; never less than any child's."""
        self.released = 0
        """Recency: number of the release at which the lock last fell to zero."""
        self.uses = 0
        """How often a request held the node that another had made."""
        self.born = born
        self.stamp = 0
        self.prev: Node | None = None
        self.next: Node | None = None


class EvictionOrder(Protocol):
    """Is told what becomes of nodes and says which leaf gives a block up next."""

    def unlocked(self, node: Node) -> None:
        """Nobody holds the node any more (its children are unlocked already)."""

    def locked(self, node: Node) -> None:
        """Somebody holds the node again."""

    def bared(self, node: Node) -> None:
        """An unlocked node has lost its last child."""

    def split(self, head: Node, tail: Node) -> None:
        """``head`` has been cut off an unlocked ``tail`` and is now its parent."""

    def removed(self, node: Node) -> None:
        """The unlocked node has no blocks left."""

    def victim(self) -> Node:
        """The unlocked leaf to give up next. Raises LookupError where there is none."""

    def check(self, unlocked: Iterable[Node]) -> None:
        """Raises AssertionError unless the order holds what it must of the ``unlocked`` nodes, in the right order."""


class LeastRecent:
    def __init__(self) -> None:
        self._end = Node(None, b"", [], 0)
        """Before the first and after the last: an empty list needs no special case."""
        self._end.prev = self._end.next = self._end
        self._releases = 0

    def unlocked(self, node: Node) -> None:
        self._releases += 1
        node.released = self._releases
        self._insert(node, self._end)

    def locked(self, node: Node) -> None:
        before, after = node.prev, node.next
        assert before is not None and after is not None, "a node that is not in line cannot leave it"
        before.next, after.prev = after, before
        node.prev = node.next = None

    def bared(self, node: Node) -> None:
        pass  # It has its place already.

    def split(self, head: Node, tail: Node) -> None:
        assert tail.next is not None
        self._insert(head, tail.next)

    def removed(self, node: Node) -> None:
        self.locked(node)

    def victim(self) -> Node:
        first = self._end.next
        if first is None or first is self._end:
            raise LookupError("nothing can be given up: every cached block is held")
        return first

    def check(self, unlocked: Iterable[Node]) -> None:
        line: list[Node] = []
        node = self._end.next
        while node is not None and node is not self._end:
            if line and node.prev is not line[-1]:
                raise AssertionError("the list of unlocked nodes is not linked both ways")
            line.append(node)
            node = node.next
        place = {id(node): number for number, node in enumerate(line)}
        wanted = {id(node) for node in unlocked}
        if len(place) != len(line) or place.keys() != wanted:
            raise AssertionError(f"{len(line)} nodes stand in line to leave and {len(wanted)} are unlocked")
        if any(before.released > after.released for before, after in pairwise(line)):
            raise AssertionError("the line is not in the order of last use")
        for node in line:
            if node.parent is not None and place.get(id(node.parent), len(line)) < place[id(node)]:
                raise AssertionError("a parent would leave before its child")

    def _insert(self, node: Node, after: Node) -> None:
        """Puts ``node`` just before ``after``."""
        before = after.prev
        assert before is not None
        node.prev, node.next = before, after
        before.next = after.prev = node


class Ranked:
    """``rank``: the smaller leaves first; of equals, the one that became a free leaf earlier."""

    def __init__(self, rank: Callable[[Node], int]) -> None:
        self._rank = rank
        self._heap: list[tuple[int, int, Node]] = []
        self._stamps = 0
        self._live = 0
        self._releases = 0

    def unlocked(self, node: Node) -> None:
        self._releases += 1
        node.released = self._releases
        if node.num_children == 0:
            self.bared(node)

    def locked(self, node: Node) -> None:
        if node.stamp:
            node.stamp = 0
            self._live -= 1

    def bared(self, node: Node) -> None:
        self._stamps += 1
        node.stamp = self._stamps
        self._live += 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[2].stamp == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (self._rank(node), node.stamp, node))

    def split(self, head: Node, tail: Node) -> None:
        pass  # The tail keeps its place; the head has a child.

    def removed(self, node: Node) -> None:
        self.locked(node)

    def victim(self) -> Node:
        while self._heap:
            _, stamp, node = self._heap[0]
            if node.stamp == stamp:
                return node
            heapq.heappop(self._heap)
        raise LookupError("nothing can be given up: every cached block is held")

    def check(self, unlocked: Iterable[Node]) -> None:
        live = {id(node): rank for rank, stamp, node in self._heap if node.stamp == stamp}
        leaves = {id(node): self._rank(node) for node in unlocked if node.num_children == 0}
        if live != leaves or len(live) != self._live:
            raise AssertionError(f"{len(live)} nodes stand in line to leave and {len(leaves)} are unlocked leaves")
        if len(self._heap) > 2 * self._live + 65 + len(leaves):
            raise AssertionError("the heap keeps too much that is out of date")


EVICTION: dict[str, Callable[[], EvictionOrder]] = {
    "lru": LeastRecent,
    "lfu": lambda: Ranked(lambda node: node.uses),
    "fifo": lambda: Ranked(lambda node: node.born),
}
