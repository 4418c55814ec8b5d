"""HashIndex: blocks by a chain of digests (as vLLM does it).

The digest of a block is sha256(digest of the block before it, the block's tokens); before the first block stands the
digest of the namespace. Equal digests mean equal tokens from the first on, so one look into a table finds a block. The
tokens themselves are not kept (but with ``partial``, which must compare them): that two heads have one digest is as
likely as for sha256 anywhere. The parent's digest and the tokens have fixed lengths, so no two inputs run together into
the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256

from workbench.kv.eviction import Node
from workbench.kv.prefix_index import TOKEN_BYTES, PrefixIndex, Trail, require


def extend_chain(digests: list[bytes], start: bytes, tokens: bytes | bytearray, block_size: int) -> None:
    """Adds the digests of the full blocks of packed ``tokens`` that ``digests`` lacks. ``start``: the namespace's."""
    width = block_size * TOKEN_BYTES
    parent = digests[-1] if digests else start
    view = memoryview(tokens)
    for begin in range(len(digests) * width, len(tokens) - width + 1, width):
        chain = sha256(parent)
        chain.update(view[begin : begin + width])
        parent = chain.digest()
        digests.append(parent)
    view.release()


class HashIndex(PrefixIndex):
    name = "hash"

    def clear(self) -> None:
        super().clear()
        self.table: dict[bytes, Node] = {}
        """All nodes by digest."""

    def match(self, trail: Trail, limit: int) -> list[int]:
        blocks: list[int] = []
        for digest in self._chain(trail)[:limit]:
            node = self.table.get(digest)
            if node is None:
                break
            blocks.append(node.blocks[0])
        return blocks

    def hold(self, trail: Trail, num_blocks: int) -> None:
        found = len(self.match(trail, num_blocks))
        if found != num_blocks or trail.held:
            raise ValueError(f"{num_blocks} blocks are to be held, {found} are there, {trail.held} are held")
        if num_blocks:
            self._hold_path(trail, self.table[trail.digests[num_blocks - 1]], num_blocks)

    def publish(self, trail: Trail, blocks: Sequence[int]) -> list[int]:
        if not blocks:
            return []
        node = self._root(trail.space) if trail.end is None else trail.end
        kept: list[int] = []
        end = trail.held + len(blocks)
        for digest, block in zip(self._chain(trail)[trail.held : end], blocks, strict=True):
            found = self.table.get(digest)
            if found is None:
                parent, node = node, self._new(node, digest, [block])
                self.table[digest] = node
                if self.partial:
                    begin = (trail.held + len(kept)) * self.block_size * TOKEN_BYTES
                    node.tokens = trail.tokens[begin : begin + self.block_size * TOKEN_BYTES]
                    parent.children[digest] = node
            else:
                self._lock(found)
                node = found
            kept.append(node.blocks[0])
        trail.end, trail.held = node, end
        return kept

    def nodes(self) -> Iterator[Node]:
        return iter(self.table.values())

    def check(self, trails: Collection[Trail], ref_counts: Sequence[int]) -> None:
        super().check(trails, ref_counts)
        for digest, node in self.table.items():
            require(node.key == digest and len(node.blocks) == 1, "a node is one block, found by its digest")
            parent = node.parent
            require(
                parent is not None and (parent.parent is None or self.table.get(parent.key) is parent),
                "what comes before a block is there too",
            )
            if self.partial and node.parent is not None:
                require(node.parent.children.get(digest) is node, "parent and child know each other")

    def _chain(self, trail: Trail) -> list[bytes]:
        width = self.block_size * TOKEN_BYTES
        if len(trail.digests) < len(trail.tokens) // width:
            extend_chain(trail.digests, trail.space, trail.tokens, self.block_size)
        return trail.digests

    def _continuations(self, trail: Trail, num_blocks: int) -> Iterator[tuple[int, bytes]]:
        node = self.table[self._chain(trail)[num_blocks - 1]] if num_blocks else self.roots.get(trail.space)
        for child in reversed(node.children.values()) if node is not None else ():
            yield child.blocks[0], bytes(child.tokens)

    def _unlink(self, node: Node) -> None:
        del self.table[node.key]
        if self.partial:
            assert node.parent is not None
            del node.parent.children[node.key]
