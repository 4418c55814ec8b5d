"""Places: who runs and who waits, which blocks they hold, and how a request comes to a place and loses it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from workbench.config import EngineConfig
from workbench.engine import admission, policies
from workbench.engine.request import Request, Status
from workbench.kv.block_store import POOL, BlockStore
from workbench.kv.caching_pool import CachingPool
from workbench.kv.pool import BlockPool
from workbench.kv.prefix_index import Part
from workbench.plan import StepPlan

_rank = attrgetter("rank")


class Joining(NamedTuple):
    """A waiting request that might join the running ones."""

    request: Request
    start: int
    """Tokens whose KV is there already: cached, shared by the donor, or kept by the host."""
    donor: Request | None
    """Another answer to the same prompt whose blocks it may share."""
    head: Sequence[int] = ()
    """Cached blocks of its first tokens."""
    part: Part | None = None
    """The cached block after them, if only its first tokens are the request's."""

    @property
    def cached(self) -> Sequence[int]:
        """Cached blocks that are wanted, so they cannot be given up for others."""
        return [*self.head, self.part.block] if self.part else self.head


class Places:
    """``running`` and ``waiting`` are ordered by rank: who goes first stands first.

    When blocks run out, the last in rank of the running requests gives its blocks back and waits again. The first can
    therefore always go on, and since no request is accepted that could not run alone, everything finishes. A preempted
    request computes its tokens again later or, with a ``host`` store, has its blocks copied there and back.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, host: BlockStore | None = None) -> None:
        self.config = config
        self.pool = pool
        self.cache = pool if isinstance(pool, CachingPool) else None
        """The pool, where it keeps what was computed (``enable_prefix_caching``)."""
        self.host = host
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.chunk_limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.max_model_len = config.max_model_len or pool.capacity
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.batching = policies.BATCHING[config.batching](config)
        self._urgency = policies.RANKS[config.scheduling_policy]
        self._num_added = 0
        self._returning: tuple[Request, int] | None = None
        """One that came back from a preemption and its tokens then. Until it has one more, nobody joins."""

    def add(self, request: Request) -> None:
        request.rank = (self._urgency(request), self._num_added)
        self._num_added += 1
        if self.cache is not None:
            self.cache.enroll(request.request_id, request.cache_salt)
        _enter(self.waiting, request)

    def abort(self, request: Request) -> None:
        """Ends a request in any state and gives its blocks back."""
        if request.status is Status.WAITING:
            _leave(self.waiting, request)
        elif request.status is not Status.FINISHED:
            self.running.remove(request)
        self._close(request, "abort")

    def rollback(self, plan: StepPlan) -> None:
        """The plan was not carried out, or nobody knows how far: nothing that it moved or copied is relied upon."""
        touched = {move.to for move in plan.moves if move.target == POOL} | {to for _, to in plan.copies}
        for item in plan.scheduled:
            request: Request = item.request  # type: ignore[assignment]
            if request.status is Status.RUNNING and not touched.isdisjoint(request.block_table):
                self._preempt(request, StepPlan(), swap=False)
        if self.cache is not None:
            self.cache.take_back()
        if self.host is not None:
            saved = {move.to for move in plan.moves if move.target == self.host.name}
            for request in self.waiting:
                if not saved.isdisjoint(self.host.tables.get(request.request_id, ())):
                    self.host.drop(request.request_id)
                    _forget(request)

    def cached_head(self, request: Request) -> list[int]:
        """Blocks that hold the head of a waiting request's tokens, so that it need not compute them.

        The last token is always left to compute: its logits are wanted. So are those of all prompt tokens whose log
        probabilities are still to be told (``prompt_logprobs``).
        """
        if self.cache is None or request.num_computed_tokens:
            return []
        return self.cache.match(request.request_id, request.token_ids, most_cached(request) // self.pool.block_size)

    def _cached(self, request: Request) -> Joining:
        """A waiting request with all that is cached for it."""
        head = self.cached_head(request)
        start, part = len(head) * self.pool.block_size, None
        if self.cache is not None:
            part = self.cache.match_part(request.request_id, len(head), most_cached(request) - start)
        return Joining(request, start + (part.num_tokens if part else 0), None, head, part)

    def _join(self, plan: StepPlan, candidate: Joining, num_tokens: int) -> bool:
        """Lets a waiting request run and compute ``num_tokens`` tokens. False where there are not enough blocks."""
        request, start, donor, head, part = candidate
        pool, came_back = self.pool, request.num_preemptions > 0
        behind = len(request.token_ids) - start - num_tokens
        missing, spare = self._needs(candidate, num_tokens)
        too_early = self._returning is not None or request.request_id in plan.preempted
        if too_early or not self._free(missing + spare, candidate.cached):
            return False
        _leave(self.waiting, request)
        _enter(self.running, request)
        request.status = Status.RUNNING
        request.block_table = pool.open(request.request_id)
        shared = start // pool.block_size
        if donor:
            pool.follow(request.request_id, donor.request_id, shared, request.token_ids)
        elif self.cache is not None and request.num_computed_tokens == 0:
            self.cache.adopt(request.request_id, head)
            if part is not None:
                self.cache.lend(request.request_id, part)
            request.num_computed_tokens = start
            if not came_back:
                # Here, once in a request's life: what it computes again after a preemption is no hit.
                request.num_cached_tokens = start
                self.cache.count_query(request.num_prompt_tokens, len(head), start)
        pool.grow(request.request_id, missing)
        if donor:
            request.num_computed_tokens = start
            if start % pool.block_size:
                # Both will write into the block in which the prompt ends, so the fork gets a copy of its own.
                plan.copies.append((donor.block_table[shared], request.block_table[shared]))
        elif part is not None:
            plan.copies.append((part.block, request.block_table[shared]))
        elif self.host is not None and request.request_id in self.host.tables:
            plan.moves += self.host.restore(request.request_id, pool)
        if came_back and behind:
            self._returning = request, len(request.token_ids)
        return True

    def _needs(self, candidate: Joining, num_tokens: int) -> tuple[int, int]:
        """Blocks that a candidate lacks to compute ``num_tokens`` tokens, and blocks that must stay to spare beside."""
        request, start, donor, head, _ = candidate
        pool, came_back = self.pool, request.num_preemptions > 0
        shared = start // pool.block_size if donor else len(head)
        if not came_back:
            return pool.blocks_for(start + num_tokens) - shared, 0
        # One that was preempted takes the blocks for all its tokens at once, so that nobody has them before it.
        behind = len(request.token_ids) - start - num_tokens
        spare = admission.growth(request, behind, self.running, pool, self.max_num_batched_tokens, self.chunk_limit)
        return pool.blocks_for(len(request.token_ids)) - shared, spare

    def _is_anyone_returning(self) -> bool:
        if self._returning is not None:
            request, num_tokens = self._returning
            if request.status is not Status.RUNNING or len(request.token_ids) > num_tokens:
                self._returning = None
        return self._returning is not None

    def _displace(self, plan: StepPlan) -> None:
        """Sends running requests away for the first that waits, if its priority is better and that makes room."""
        head, running, pool = self.waiting[0], self.running, self.pool
        if not running or head.priority >= running[-1].priority or self._is_anyone_returning():
            return
        cached = dict.fromkeys(self.cached_head(head))
        start = len(cached) * pool.block_size
        num_tokens = start + min(len(head.token_ids) - start, self.chunk_limit, self.max_num_batched_tokens)
        needed = pool.blocks_for(len(head.token_ids) if head.num_preemptions else num_tokens)
        needed -= sum(pool.ref_counts[block] > 0 for block in cached)
        seats, free = self.max_num_seqs - len(running), pool.num_available
        chosen: list[Request] = []
        holders: dict[int, int] = {}
        for other in reversed(running):
            if seats > 0 and free >= needed:
                break
            if other.status is Status.RUNNING and policies.may_displace(head, other):
                chosen.append(other)
                seats += 1
                for block in other.block_table:
                    holders[block] = holders.get(block, pool.ref_counts[block]) - 1
                    # What the head would share with those who leave makes no room: it is to stay.
                    free += holders[block] == 0 and block not in cached
        if seats > 0 and free >= needed:
            for other in chosen:
                other.num_displaced += 1
                self._preempt(other, plan)

    def _grow(self, plan: StepPlan, request: Request, num_blocks: int) -> bool:
        """Gives a running request blocks, if need be those of the last in rank. False: that was itself."""
        while not self._free(num_blocks):
            victim = next(other for other in reversed(self.running) if other.status is Status.RUNNING)
            self._preempt(victim, plan)
            if victim is request:
                return False
        self.pool.grow(request.request_id, num_blocks)
        return True

    def _free(self, num_blocks: int, head: Sequence[int] = ()) -> bool:
        """Whether so many blocks can be had, once those that complete answers hold are given up as far as it takes.

        ``head``: cached blocks that are to be used, so they cannot be given up for others.
        """
        if self._can_have(num_blocks, head):
            return True
        if self.batching.keeps_seats:
            for request in self.running:
                if request.status is Status.HELD and request.block_table:
                    self.pool.release(request.request_id)
                    request.block_table = []
                    if self._can_have(num_blocks, head):
                        return True
        return False

    def _can_have(self, num_blocks: int, head: Sequence[int]) -> bool:
        used = self.cache.num_unheld(head) if self.cache is not None and head else 0
        return num_blocks + used <= self.pool.num_available

    def _preempt(self, request: Request, plan: StepPlan, swap: bool = True) -> None:
        """Takes a running request's blocks away. Its KV goes to the host if there is room, else it is lost."""
        moves = None
        if self.host is not None and swap and request.num_computed_tokens:
            num_blocks = self.pool.blocks_for(request.num_computed_tokens)
            moves = self.host.save(request.request_id, self.pool, num_blocks)
        plan.moves += moves or []
        if moves is None:
            _forget(request)
        self.pool.release(request.request_id)
        request.block_table = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        plan.preempted.append(request.request_id)
        _leave(self.running, request)
        _enter(self.waiting, request)
        request.status = Status.WAITING

    def _close(self, request: Request, reason: str) -> None:
        if request.request_id in self.pool.tables:
            self.pool.release(request.request_id)
        if self.host is not None:
            self.host.drop(request.request_id)
        if self.cache is not None:
            self.cache.dismiss(request.request_id)
        request.block_table = []
        request.status = Status.FINISHED
        request.finish_reason = reason


def _enter(ordered: list[Request], request: Request) -> None:
    ordered.insert(bisect_left(ordered, request.rank, key=_rank), request)


def _leave(ordered: list[Request], request: Request) -> None:
    del ordered[bisect_left(ordered, request.rank, key=_rank)]


def most_cached(request: Request) -> int:
    """Tokens of a request that may come from the cache."""
    most = len(request.token_ids) - 1
    if request.params.prompt_logprobs is not None and request.num_prompt_logprobs < request.num_prompt_tokens - 1:
        most = min(most, request.num_prompt_logprobs)
    return most


def _forget(request: Request) -> None:
    """Nothing of the request is in any cache any more."""
    request.recompute_until = max(request.recompute_until, request.num_computed_tokens)
    request.num_computed_tokens = 0
