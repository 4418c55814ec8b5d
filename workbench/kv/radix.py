"""RadixIndex: a tree of token spans (RadixAttention, Zheng et al. 2024), compared token by token, so never wrong.

A node holds the tokens of one or more whole blocks and the blocks themselves; its children differ in their first block.
With a block size of 1 two requests share up to the very token at which they part.

*Split.* A request that ends within a node, or leaves its branch there, cuts it in two. The front half is a new node and
the parent of the old one, which keeps the rear half: whoever ended at the old node still ends there. Both halves have
the lock, the recency, the uses and the age of the whole, and the front half leaves just after the rear.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from workbench.kv.eviction import Node
from workbench.kv.prefix_index import TOKEN_BYTES, PrefixIndex, Trail, common_head, require


class RadixIndex(PrefixIndex):
    name = "radix"

    def __init__(self, block_size: int, eviction_policy: str = "lru", partial: bool = False) -> None:
        super().__init__(block_size, eviction_policy, partial)
        self._width = block_size * TOKEN_BYTES

    def match(self, trail: Trail, limit: int) -> list[int]:
        return self._walk(trail, limit)[2]

    def hold(self, trail: Trail, num_blocks: int) -> None:
        node, used, blocks = self._walk(trail, num_blocks)
        if len(blocks) != num_blocks or trail.held:
            raise ValueError(f"{num_blocks} blocks are to be held, {len(blocks)} are there, {trail.held} are held")
        if num_blocks and node is not None:
            end = self._split(node, used) if used < len(node.blocks) else node
            self._hold_path(trail, end, num_blocks)

    def publish(self, trail: Trail, blocks: Sequence[int]) -> list[int]:
        if not blocks:
            return []
        node = self._root(trail.space) if trail.end is None else trail.end
        kept: list[int] = []
        width, at = self._width, trail.held
        end = at + len(blocks)
        while at < end:
            child = node.children.get(bytes(trail.tokens[at * width : (at + 1) * width]))
            if child is None:
                rest = list(blocks[len(kept) :])
                node = self._add(trail, node, rest, at)
                kept += rest
                break
            found = self._common(trail.tokens, at, child, end - at)
            if found < len(child.blocks):
                child = self._split(child, found)
            self._lock(child)
            kept += child.blocks
            at += found
            node = child
        trail.end, trail.held = node, end
        return kept

    def nodes(self) -> Iterator[Node]:
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self, trails: Collection[Trail], ref_counts: Sequence[int]) -> None:
        super().check(trails, ref_counts)
        for node in self.nodes():
            assert node.parent is not None
            require(node.key == node.tokens[: self._width], "a node is found by its first block")
            require(node.parent.children.get(node.key) is node, "parent and child know each other")
            require(len(node.tokens) == len(node.blocks) * self._width, "a node has the tokens of its blocks")
        for trail in trails:
            path: list[bytes] = []
            step = trail.end
            while step is not None and step.parent is not None:
                path.append(bytes(step.tokens))
                step = step.parent
            require(trail.tokens.startswith(b"".join(reversed(path))), "a trail holds blocks of its own tokens")

    def _walk(self, trail: Trail, limit: int) -> tuple[Node | None, int, list[int]]:
        """The last node on the way of the trail's tokens, how many of its blocks are on it, and all blocks on it."""
        width, tokens = self._width, trail.tokens
        limit = min(limit, len(tokens) // width)
        node, used = self.roots.get(trail.space), 0
        blocks: list[int] = []
        while node is not None and len(blocks) < limit:
            at = len(blocks)
            child = node.children.get(bytes(tokens[at * width : (at + 1) * width]))
            if child is None:
                break
            node, used = child, self._common(tokens, at, child, limit - at)
            blocks += node.blocks[:used]
            if used < len(node.blocks):
                break
        return node, used, blocks

    def _continuations(self, trail: Trail, num_blocks: int) -> Iterator[tuple[int, bytes]]:
        node, used, _ = self._walk(trail, num_blocks)
        if node is None:
            return
        if used < len(node.blocks):
            yield node.blocks[used], bytes(node.tokens[used * self._width : (used + 1) * self._width])
            return
        for child in reversed(node.children.values()):
            yield child.blocks[0], child.key

    def _common(self, tokens: bytearray, at: int, node: Node, most: int) -> int:
        """How many blocks of ``node``, ``most`` at most, equal the tokens from block ``at`` on. The first does."""
        width, most = self._width, min(most, len(node.blocks))
        return common_head(tokens[at * width : (at + most) * width], node.tokens, most, width)

    def _add(self, trail: Trail, node: Node, blocks: list[int], at: int) -> Node:
        """The blocks of a trail that ends at ``node`` and that nobody has gone before."""
        width = self._width
        tokens = trail.tokens[at * width : (at + len(blocks)) * width]
        if node is trail.own and node.lock == 1 and node.num_children == 0:
            node.blocks += blocks
            node.tokens += tokens
            self.num_blocks += len(blocks)
            return node
        child = self._new(node, bytes(tokens[:width]), blocks)
        child.tokens = tokens
        node.children[child.key] = child
        trail.own = child
        return child

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cuts the first ``num_blocks`` blocks off ``node`` and returns them as its new parent."""
        parent, width = node.parent, self._width
        assert parent is not None
        head = Node(parent, node.key, node.blocks[:num_blocks], node.born)
        head.tokens = node.tokens[: num_blocks * width]
        head.lock, head.released, head.uses = node.lock, node.released, node.uses
        parent.children[head.key] = head
        node.blocks = node.blocks[num_blocks:]
        node.tokens = node.tokens[num_blocks * width :]
        node.key = bytes(node.tokens[:width])
        node.parent = head
        head.children[node.key] = node
        head.num_children = 1
        if node.lock == 0:
            self.order.split(head, node)
        return head

    def _unlink(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
