"""Prompts sent one after the other through the engine's own block pool: what each finds, adds and drives out.

No model computes here. A request takes the way it takes in the engine: `Places` enrolls, matches and adopts,
`Scheduler.commit` publishes, `Places` releases and dismisses. A test holds this beside an engine's traces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.kv.caching_pool import INDEXES, CachingPool, PrefixStats
from workbench.kv.eviction import EVICTION
from workbench.lab.token_text import TokenTexts, joined, numbers
from workbench.lab.tree_snapshot import AGAIN, HIT, NEW, Gone, TreeSnapshot


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt, and the index while the request still holds its blocks."""

    name: str
    text: str
    num_tokens: int
    hit_blocks: int
    hit_tokens: int
    copied_from: int | None
    """The block of which it uses a copy of the first tokens; ``hit_tokens`` counts these."""
    new_blocks: int
    """Full blocks that it entered into the index."""
    shared_with: tuple[str, ...]
    """Who holds some of the blocks that it found, at the same time."""
    evicted: tuple[int, ...]
    """Blocks given up to make room for it."""
    refused: str
    """Why it did not run; empty if it did."""
    tree: TreeSnapshot
    stats: PrefixStats
    """Of all prompts so far."""

    @property
    def sentence(self) -> str:
        """What happened, in words."""
        if self.refused:
            return f"{self.name}: {self.refused}"
        told = f"{self.name}: {self.hit_tokens} of {_count(self.num_tokens, 'token')} found"
        if self.hit_blocks:
            told += f" in {_count(self.hit_blocks, 'block')}"
        if self.copied_from is not None:
            told += f"{' and' if self.hit_blocks else ' in'} a copy of the head of block {self.copied_from}"
        told += f"; {self.num_tokens - self.hit_tokens} computed, {_count(self.new_blocks, 'new full block')}"
        if self.shared_with:
            told += f"; shared with {', '.join(self.shared_with)}"
        if self.evicted:
            told += f"; {_count(len(self.evicted), 'cached block')} given up to make room"
        return told


def run_prompts(
    prompts: Mapping[str, Sequence[int]],
    *,
    num_blocks: int,
    block_size: int,
    prefix_index: str = "radix",
    eviction_policy: str = "lru",
    partial: bool = False,
    keep: Collection[str] = (),
    texts: TokenTexts | None = None,
) -> list[PromptRun]:
    """Sends prompts (name → token ids) through a new `CachingPool`, in order; each ends before the next comes.

    ``partial``: reuse within a block too (``prefix_partial_reuse``). ``keep``: prompts that do not end, so they hold
    their blocks to the last. ``texts``: see `TreeSnapshot.of`. A prompt that does not fit is told so in its run
    (``refused``) and changes nothing.
    """
    for what, value, known in (("prefix_index", prefix_index, INDEXES), ("eviction_policy", eviction_policy, EVICTION)):
        if value not in known:
            raise UsageError(f"{what}={shown(value)} is not known; choose from {', '.join(known)}")
    if strangers := [name for name in keep if name not in prompts]:
        raise UsageError(f"keep={shown(strangers[0])} is none of the prompts {shown(list(prompts))}")
    pool = CachingPool(num_blocks, block_size, prefix_index, eviction_policy, partial=partial)
    sender = _Sender(pool, texts or numbers)
    return [sender.send(name, list(ids), name in keep) for name, ids in prompts.items()]


class _Sender:
    def __init__(self, pool: CachingPool, texts: TokenTexts) -> None:
        self.pool, self.texts = pool, texts
        self.contents: dict[int, Sequence[int]] = {}
        """Tokens of the blocks in the index, for one that keeps digests only."""

    def send(self, name: str, ids: list[int], keep: bool) -> PromptRun:
        pool, size = self.pool, self.pool.block_size
        if not ids:
            return self._refused(name, ids, "an empty prompt has no token to compute: give at least one")
        pool.enroll(name)
        # The last token is always computed: its logits are wanted (`Places.cached_head`).
        head = pool.match(name, ids, (len(ids) - 1) // size)
        part = pool.match_part(name, len(head), len(ids) - 1 - len(head) * size)
        need = pool.blocks_for(len(ids)) - len(head)
        if part is not None and need + pool.num_unheld([*head, part.block]) > pool.num_available:
            part = None  # no room for the block and its copy at once: its tokens are computed (`Scheduler._again`)
        if need + pool.num_unheld(head) > pool.num_available:
            pool.dismiss(name)
            return self._refused(name, ids, _no_room(pool, len(ids), len(head)))
        pool.open(name)
        shared_with = tuple(other for other, table in pool.tables.items() if not set(head).isdisjoint(table))
        pool.adopt(name, head)
        if part is not None:
            pool.lend(name, part)
        hit_tokens = len(head) * size + (part.num_tokens if part else 0)
        pool.count_query(len(ids), len(head), hit_tokens)
        before = self._tree()
        pool.grow(name, need)
        left = set(pool.index.blocks())
        places = {block: at or 0 for node in before.nodes for block, at in zip(node.blocks, node.leaves, strict=True)}
        evicted = sorted(places.keys() - left, key=places.__getitem__)
        pool.publish(name, ids, len(ids))
        marks: dict[int, str] = {}
        for place, block in enumerate(pool.tables[name][: len(ids) // size]):
            self.contents[block] = ids[place * size : (place + 1) * size]
            marks[block] = HIT if place < len(head) else AGAIN if block in left else NEW
        tree = self._tree(marks)
        run = PromptRun(
            name=name,
            text=joined(self.texts(ids)),
            num_tokens=len(ids),
            hit_blocks=len(head),
            hit_tokens=hit_tokens,
            copied_from=part.block if part else None,
            new_blocks=sum(mark == NEW for mark in marks.values()),
            shared_with=shared_with,
            evicted=tuple(evicted),
            refused="",
            tree=replace(tree, gone=tuple(_gone(before, left, tree))),
            stats=pool.stats,
        )
        if not keep:
            pool.release(name)
            pool.dismiss(name)
        pool.take_back()
        return run

    def _refused(self, name: str, ids: list[int], why: str) -> PromptRun:
        text = joined(self.texts(ids))
        return PromptRun(name, text, len(ids), 0, 0, None, 0, (), (), why, self._tree(), self.pool.stats)

    def _tree(self, marks: Mapping[int, str] | None = None) -> TreeSnapshot:
        return TreeSnapshot.of(self.pool, self.texts, marks=marks, contents=self.contents)


def _gone(before: TreeSnapshot, left: Collection[int], now: TreeSnapshot) -> list[Gone]:
    """What went, branch by branch, each with the node after which it came, if that is still there."""
    place = {block: at for at, node in enumerate(now.nodes) for block in node.blocks}
    found: list[tuple[list[int], list[str], int | None]] = []
    ends: dict[int, int] = {}
    """A node whose last block went → its place in ``found``, until another is appended there."""
    for at, node in enumerate(before.nodes):
        # A node gives up its last blocks first, so those that stayed are its first.
        stayed = sum(block in left for block in node.blocks)
        if stayed == len(node.blocks):
            continue
        row = ends.pop(node.parent, None) if node.parent is not None else None
        if row is None:
            row = len(found)
            hook = _hook(before, left, at)
            found.append(([], [], None if hook is None else place[hook]))
        found[row][0].extend(node.blocks[stayed:])
        found[row][1].extend(node.block_texts[stayed:])
        ends[at] = row
    return [Gone(tuple(blocks), tuple(texts), parent) for blocks, texts, parent in found]


def _hook(before: TreeSnapshot, left: Collection[int], at: int | None) -> int | None:
    """The last block on the way to a node that stayed."""
    while at is not None:
        stayed = [block for block in before.nodes[at].blocks if block in left]
        if stayed:
            return stayed[-1]
        at = before.nodes[at].parent
    return None


def _no_room(pool: CachingPool, num_tokens: int, num_found: int) -> str:
    needed, size = pool.blocks_for(num_tokens), pool.block_size
    told = f"{num_tokens} tokens need {_count(needed, 'block')} of {_count(size, 'token')}"
    if needed > pool.num_blocks:
        return f"{told} and the pool has {pool.num_blocks}: shorten the prompt or take a larger pool"
    held = pool.num_blocks - pool.num_available
    found = f", of which {num_found} {'is' if num_found == 1 else 'are'} there" if num_found else ""
    return f"{told}{found}, and running requests hold {held} of {pool.num_blocks}: it would wait until one has ended"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
