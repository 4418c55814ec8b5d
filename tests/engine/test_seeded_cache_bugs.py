"""Bugs that prefix caches have had, seeded one by one: the checks of `CheckedEngine` and the pool must catch each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.crowded import CACHING, exercise
from tests.engine.test_seeded_bugs import CAUGHT
from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.kv import caching_pool, hash_chain
from workbench.kv.caching_pool import CachingPool
from workbench.kv.eviction import LeastRecent, Node
from workbench.kv.hash_chain import HashIndex
from workbench.kv.prefix_index import Part, PrefixIndex, Trail
from workbench.kv.radix import RadixIndex
from workbench.plan import StepPlan


def exercise_all() -> None:
    for options in CACHING:
        for seed in range(3):
            exercise(seed, **options)


def test_the_true_code_passes() -> None:
    exercise_all()


Patch = pytest.MonkeyPatch


def stale_recency_after_split(patch: Patch) -> None:
    """The rear half of a node that is cut counts as just used, although only the front half is."""
    split = LeastRecent.split

    def refreshed(self: LeastRecent, head: Node, tail: Node) -> None:
        self.locked(tail)
        self._insert(tail, self._end)
        split(self, head, tail)

    patch.setattr(LeastRecent, "split", refreshed)


def most_recent_first(patch: Patch) -> None:
    """Whoever was used last stands first in line to leave."""
    insert = LeastRecent._insert

    def first(self: LeastRecent, node: Node, after: Node) -> None:
        assert self._end.next is not None
        insert(self, node, self._end.next if after is self._end else after)

    patch.setattr(LeastRecent, "_insert", first)


def lock_lost_in_a_split(patch: Patch) -> None:
    split = RadixIndex._split

    def unlocked(self: RadixIndex, node: Node, num_blocks: int) -> Node:
        head = split(self, node, num_blocks)
        head.lock = 0
        return head

    patch.setattr(RadixIndex, "_split", unlocked)


def parents_leave_first(patch: Patch) -> None:
    """Who lets go begins at the root, so heads leave before what hangs on them."""

    def from_the_root(self: PrefixIndex, trail: Trail) -> None:
        path: list[Node] = []
        node = trail.end
        while node is not None and node.parent is not None:
            path.insert(0, node)
            node = node.parent
        for node in path:
            node.lock -= 1
            if node.lock == 0:
                self.order.unlocked(node)
        trail.end = trail.own = None
        trail.held = 0

    patch.setattr(PrefixIndex, "release", from_the_root)


def never_unlocked(patch: Patch) -> None:
    """A request ends and keeps its lock: the pool fills up with what can never leave."""

    def forgetful(self: PrefixIndex, trail: Trail) -> None:
        trail.end = trail.own = None
        trail.held = 0

    patch.setattr(PrefixIndex, "release", forgetful)


def shared_block_freed_twice(patch: Patch) -> None:
    """A block that is in the index goes to the free list as well."""
    drop = CachingPool._drop

    def twice(self: CachingPool, block: int) -> None:
        drop(self, block)
        if self.ref_counts[block] == 0 and self._indexed[block]:
            self._free.append(block)

    patch.setattr(CachingPool, "_drop", twice)


def duplicate_never_freed(patch: Patch) -> None:
    """The table is pointed to the block that was there, and the own copy is forgotten."""
    drop, publish = CachingPool._drop, CachingPool.publish

    def forgetful(self: CachingPool, owner: str, token_ids: Sequence[int], num_computed: int) -> None:
        patch.setattr(CachingPool, "_drop", lambda self, block: self.ref_counts.__setitem__(block, 0))
        publish(self, owner, token_ids, num_computed)
        patch.setattr(CachingPool, "_drop", drop)

    patch.setattr(CachingPool, "publish", forgetful)


def duplicate_freed_and_not_remapped(patch: Patch) -> None:
    publish = CachingPool.publish

    def unmapped(self: CachingPool, owner: str, token_ids: Sequence[int], num_computed: int) -> None:
        before = list(self.tables[owner])
        publish(self, owner, token_ids, num_computed)
        self.tables[owner][:] = before

    patch.setattr(CachingPool, "publish", unmapped)


def namespace_ignored(patch: Patch) -> None:
    """Another tenant's salt makes no difference."""
    patch.setattr(caching_pool, "namespace", lambda fields, salt="": b"all the same")


def last_token_not_recomputed(patch: Patch) -> None:
    def whole(self: Scheduler, request: Request) -> list[int]:
        if self.cache is None or request.num_computed_tokens:
            return []
        most = len(request.token_ids) // self.pool.block_size
        return self.cache.match(request.request_id, request.token_ids, most)

    patch.setattr(Scheduler, "cached_head", whole)


def preemption_counted_as_hit(patch: Patch) -> None:
    """What a preempted request finds again of its own is told as a hit."""
    join = Scheduler._join

    def counting(self: Scheduler, plan: StepPlan, candidate: Any, num_tokens: int) -> bool:
        joined = join(self, plan, candidate, num_tokens)
        request, head = candidate.request, candidate.head
        if joined and head and request.num_preemptions and self.cache is not None:
            request.num_cached_tokens = candidate.start
            self.cache.count_query(request.num_prompt_tokens, len(head), candidate.start)
        return joined

    patch.setattr(Scheduler, "_join", counting)


def published_before_it_is_computed(patch: Patch) -> None:
    """Blocks are entered when they are taken, so others read them before anything is in them."""
    publish = CachingPool.publish

    def early(self: CachingPool, owner: str, token_ids: Sequence[int], num_computed: int) -> None:
        room = len(self.tables[owner]) * self.block_size
        publish(self, owner, token_ids, min(len(token_ids), room))

    patch.setattr(CachingPool, "publish", early)


def outputs_not_published(patch: Patch) -> None:
    """Only prompts are entered; what was answered is lost to the next turn."""
    commit = CachingPool.publish

    def prompts_only(self: CachingPool, owner: str, token_ids: Sequence[int], num_computed: int) -> None:
        commit(self, owner, token_ids, min(num_computed, 6))

    patch.setattr(CachingPool, "publish", prompts_only)


def reset_is_a_stub(patch: Patch) -> None:
    patch.setattr(CachingPool, "reset", lambda self: None)


def stale_after_a_reset(patch: Patch) -> None:
    """What was computed before a reset is entered after it."""
    reset = CachingPool.reset

    def same_epoch(self: CachingPool) -> None:
        reset(self)
        self.epoch -= 1

    patch.setattr(CachingPool, "reset", same_epoch)


def heads_evicted_after_they_were_found(patch: Patch) -> None:
    """Found blocks are counted as free for others too."""
    patch.setattr(CachingPool, "num_unheld", lambda self, blocks: 0)


def chain_forgets_its_parent(patch: Patch) -> None:
    """A block is known by its own tokens alone, whatever comes before it."""
    chain = hash_chain.extend_chain

    def loose(digests: list[bytes], start: bytes, tokens: bytes, block_size: int) -> None:
        width = block_size * 4
        for begin in range(len(digests) * width, len(tokens) - width + 1, width):
            chain(single := [], start, tokens[begin : begin + width], block_size)
            digests += single

    patch.setattr(hash_chain, "extend_chain", loose)


def half_a_match_is_a_match(patch: Patch) -> None:
    """A node whose first block fits is taken to fit altogether."""
    patch.setattr(RadixIndex, "_common", lambda self, tokens, at, node, most: min(most, len(node.blocks)))


def evicted_and_still_found(patch: Patch) -> None:
    patch.setattr(HashIndex, "_unlink", lambda self, node: None)


def copied_from_is_not_held(patch: Patch) -> None:
    """The block that is to be copied may be given up and filled with something else in the same step."""
    patch.setattr(CachingPool, "lend", lambda self, owner, part: None)


def copied_from_is_held_for_ever(patch: Patch) -> None:
    patch.setattr(CachingPool, "take_back", lambda self: None)


def part_too_long(patch: Patch) -> None:
    """One token more than is equal."""
    part = PrefixIndex.part

    def longer(self: PrefixIndex, trail: Trail, num_blocks: int, most: int) -> Part | None:
        found = part(self, trail, num_blocks, most)
        if found is None or found.num_tokens >= min(most, self.block_size - 1):
            return found
        return found._replace(num_tokens=found.num_tokens + 1)

    patch.setattr(PrefixIndex, "part", longer)


def part_not_copied(patch: Patch) -> None:
    """Its tokens are said to be there, and nobody copies them."""
    join = Scheduler._join

    def forgetful(self: Scheduler, plan: StepPlan, candidate: Any, num_tokens: int) -> bool:
        before = list(plan.copies)
        joined = join(self, plan, candidate, num_tokens)
        if candidate.part is not None:
            plan.copies[:] = before
        return joined

    patch.setattr(Scheduler, "_join", forgetful)


def part_too_short(patch: Patch) -> None:
    """The first token that is equal is enough."""
    part = PrefixIndex.part
    patch.setattr(PrefixIndex, "part", lambda self, trail, held, most: part(self, trail, held, min(most, 1)))


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        (stale_recency_after_split, "order of last use"),
        (most_recent_first, "parent would leave|order of last use"),
        (lock_lost_in_a_split, "a node counts|is held by|not in line"),
        (parents_leave_first, "parent would leave|order of last use"),
        (never_unlocked, "a node counts"),
        (shared_block_freed_twice, "free and in use|leaked|free list twice"),
        (duplicate_never_freed, "leaked|tables hold it"),
        (duplicate_freed_and_not_remapped, "tables hold it|reads other blocks"),
        (namespace_ignored, "takes . tokens over and . are computed"),
        (last_token_not_recomputed, "save its last|waits although"),
        (preemption_counted_as_hit, "recomputation is no hit|counted once|asks once"),
        (published_before_it_is_computed, "are computed, save its last|answers as it would alone"),
        (outputs_not_published, "tokens over although"),
        (reset_is_a_stub, "a reset leaves nothing behind"),
        (stale_after_a_reset, "are computed, save its last"),
        (heads_evicted_after_they_were_found, "were to be|are available|waits although|nothing can be given up"),
        (chain_forgets_its_parent, "are computed, save its last|answers as it would alone|holds a block twice"),
        (half_a_match_is_a_match, "are computed, save its last|answers as it would alone|blocks of its own tokens"),
        (evicted_and_still_found, "no node is empty|indexed blocks are marked"),
        (copied_from_is_not_held, "answers as it would alone|were to be|nothing can be given up"),
        (copied_from_is_held_for_ever, "exactly who runs holds blocks"),
        (part_too_long, "are computed, save its last"),
        (part_not_copied, "answers as it would alone"),
        (part_too_short, "tokens over although"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_seeded_bug_is_caught(bug: Callable[[Patch], None], rule: str, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        bug(patch)
        with pytest.raises((*CAUGHT, LookupError, ValueError), match=rule):
            exercise_all()
