"""TreeSnapshot: a prefix index as it stands at one moment, as plain data for pictures and tables."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.kv.caching_pool import CachingPool
from workbench.kv.eviction import Node
from workbench.kv.prefix_index import TOKEN_BYTES, PrefixIndex, Trail
from workbench.lab.token_text import TokenTexts, joined, numbers

HIT, NEW, AGAIN = "hit", "new", "computed again"
"""What a request did with a block: found it, entered it, or computed it although an equal one was there."""
_LONGEST_CUT = 3
"""Tokens before the one that completes a character: it has four bytes at most."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """Neighbouring blocks of one branch (one block each in a hash index)."""

    parent: int | None
    """Number of the node before it; None below a root."""
    space: str
    """The namespace, short: blocks of another are never found."""
    tokens: tuple[int, ...]
    """Empty where the index keeps only digests and nobody said what they stand for."""
    block_texts: tuple[str, ...]
    """For each block the text of its tokens."""
    blocks: tuple[int, ...]
    """Block ids."""
    lock: int
    holders: tuple[str, ...]
    """Who holds the node, as far as trails were given."""
    uses: int
    """How often a request held the node that another had made."""
    born: int
    released: int
    """Recency: number of the release at which its last holder let go; 0: it is held since it was made."""
    leaves: tuple[int | None, ...]
    """For each block its place in the line to leave, from 1; None for one that is held."""
    marks: tuple[str, ...] = ()
    """For each block `HIT`, `NEW`, `AGAIN` or nothing."""

    @property
    def mark(self) -> str:
        """The marks of its blocks in one text."""
        return ", ".join(dict.fromkeys(mark for mark in self.marks if mark))

    @property
    def state(self) -> str:
        return "held" if self.lock else "cached"


@dataclass(frozen=True, slots=True)
class Gone:
    """Blocks of one node that were given up to make room."""

    blocks: tuple[int, ...]
    block_texts: tuple[str, ...]
    parent: int | None
    """Number of the node after which they came, None for the root."""


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """``nodes``: each after its parent, branches in the order in which they were made."""

    kind: str
    """Name of the index, such as ``radix``."""
    block_size: int
    nodes: tuple[TreeNode, ...]
    gone: tuple[Gone, ...] = ()
    held_elsewhere: int = 0
    """Blocks in use that the index does not know: not full yet, or not computed."""
    num_free: int | None = None
    num_blocks: int | None = None
    """Of the pool; None for an index without one."""
    spaces: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls,
        source: CachingPool | PrefixIndex,
        texts: TokenTexts | None = None,
        *,
        trails: Mapping[str, Trail] | None = None,
        marks: Mapping[int, str] | None = None,
        contents: Mapping[int, Sequence[int]] | None = None,
        gone: Sequence[Gone] = (),
    ) -> TreeSnapshot:
        """A copy of what stands in a pool's index, or in an index alone; later changes do not reach it.

        ``texts``: token ids to a text for each (`texts_of`; else their numbers). ``trails``: who may hold something,
        where ``source`` is an index. ``marks``: block → what was done with it. ``contents``: block → its tokens, for an
        index that keeps digests only.
        """
        pool = source if isinstance(source, CachingPool) else None
        index = source.index if isinstance(source, CachingPool) else source
        if trails is None:
            trails = pool.trails if pool is not None else {}
        ordered = _in_order(index)
        number = {id(node): at for at, node in enumerate(ordered)}
        holders = _holders(trails)
        line = {block: at for at, block in enumerate(leaving_line(index), 1)}
        texts, contents = texts or numbers, contents or {}
        nodes = []
        for node in ordered:
            assert node.parent is not None
            tokens = _tokens(node, contents)
            nodes.append(
                TreeNode(
                    parent=number.get(id(node.parent)),
                    space=_root(node).key.hex()[:6],
                    tokens=tokens,
                    block_texts=_block_texts(node, tokens, index.block_size, texts, contents),
                    blocks=tuple(node.blocks),
                    lock=node.lock,
                    holders=tuple(holders.get(id(node), ())),
                    uses=node.uses,
                    born=node.born,
                    released=node.released,
                    leaves=tuple(line.get(block) for block in node.blocks),
                    marks=tuple((marks or {}).get(block, "") for block in node.blocks),
                )
            )
        elsewhere = 0
        if pool is not None:
            known = {block for node in ordered for block in node.blocks}
            elsewhere = sum(1 for b, count in enumerate(pool.ref_counts) if count and b not in known)
        return cls(
            kind=index.name,
            block_size=index.block_size,
            nodes=tuple(nodes),
            gone=tuple(gone),
            held_elsewhere=elsewhere,
            num_free=pool.num_free if pool is not None else None,
            num_blocks=pool.num_blocks if pool is not None else None,
            spaces=tuple(dict.fromkeys(node.space for node in nodes)),
        )

    @property
    def num_held(self) -> int:
        """Blocks of the index that somebody holds."""
        return sum(len(node.blocks) for node in self.nodes if node.lock)

    @property
    def num_cached(self) -> int:
        """Blocks of the index that nobody holds."""
        return sum(len(node.blocks) for node in self.nodes if not node.lock)

    def path(self, at: int | None) -> list[int]:
        """Numbers of the nodes from below the root to ``at``."""
        found: list[int] = []
        while at is not None:
            found.append(at)
            at = self.nodes[at].parent
        return found[::-1]


def leaving_line(index: PrefixIndex) -> list[int]:
    """The blocks that nobody holds, in the order in which they would be given up if nothing else happened.

    Found by evicting in a copy, so it is what the policy does and not what somebody thinks it does.
    """
    memo: dict[int, object] = {}
    originals = [*index.roots.values(), *index.nodes()]
    for node in originals:
        # All nodes are known before any is filled: a long chain of links would else be copied by as deep a recursion.
        memo[id(node)] = Node.__new__(Node)
    for node in originals:
        clone = memo[id(node)]
        for name in Node.__slots__:
            setattr(clone, name, copy.deepcopy(getattr(node, name), memo))
    twin = copy.copy(index)
    twin.__dict__ = copy.deepcopy({k: v for k, v in index.__dict__.items() if k != "evict"}, memo)
    found: list[int] = []
    while True:
        try:
            found.append(twin.evict())
        except LookupError:
            return found


def _in_order(index: PrefixIndex) -> list[Node]:
    """All nodes, depth first, older branches first."""
    below: dict[int, list[Node]] = {}
    for node in index.nodes():
        below.setdefault(id(node.parent), []).append(node)
    for children in below.values():
        children.sort(key=lambda node: (node.born, node.blocks))
    found: list[Node] = []
    stack = list(reversed(index.roots.values()))
    while stack:
        node = stack.pop()
        if node.parent is not None:
            found.append(node)
        stack.extend(reversed(below.get(id(node), [])))
    return found


def _holders(trails: Mapping[str, Trail]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, trail in trails.items():
        node = trail.end
        while node is not None and node.parent is not None:
            found.setdefault(id(node), []).append(name)
            node = node.parent
    return found


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _tokens(node: Node, contents: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Empty where the index keeps digests and nobody said what is in the blocks."""
    raw = bytes(node.tokens)
    if raw:
        return tuple(int.from_bytes(raw[at : at + TOKEN_BYTES], "little") for at in range(0, len(raw), TOKEN_BYTES))
    if all(block in contents for block in node.blocks):
        return tuple(token for block in node.blocks for token in contents[block])
    return ()


def _block_texts(
    node: Node, tokens: Sequence[int], size: int, texts: TokenTexts, contents: Mapping[int, Sequence[int]]
) -> tuple[str, ...]:
    """The text of each block; a digest where nobody knows the tokens."""
    if not tokens:
        return tuple(f"digest {node.key.hex()[:8]}" for _ in node.blocks)
    # The last tokens before the node, in which a character may begin that ends in it.
    before: tuple[int, ...] = ()
    above = node.parent
    while above is not None and len(before) < _LONGEST_CUT:
        before = _tokens(above, contents)[-_LONGEST_CUT:] + before
        above = above.parent
    shown = texts((*before, *tokens))[len(before) :]
    return tuple(joined(shown[at : at + size]) for at in range(0, len(tokens), size))
