"""Policies: each is a small restriction of the scheduler's one loop.

- Two pure functions that may be swapped for others: `departs` (when a waiting batch leaves) and `share` (who gets how
  many tokens of a step).
- `RANKS`: who goes before whom (``scheduling_policy``).
- `BATCHING`: who may join, and whom a step serves (``batching``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workbench.config import EngineConfig
from workbench.engine.request import Request, Status

DEFAULT_MAX_WAIT_MS = 100.0
"""The longest wait of dynamic batching unless ``max_wait_ms`` says otherwise."""
AGING_S = 10.0
"""A request that has waited this many seconds longer stands equal with one whose priority is better by one."""
AGING_TOKENS_PER_S = 100.0
"""Shortest-prefill-first: a second of waiting counts as much as a prompt that is this many tokens shorter."""
LPM_QUEUE_LIMIT = 128
"""With more requests waiting, ``lpm`` takes them in order of arrival: looking all of them up would cost each step more
than it gains (SGLang draws the line at the same number)."""
WARMING_TOKENS = 32
"""``lpm``: so many tokens must be saved for a request to wait until another has computed the head they share."""
MAX_DISPLACED = 2
"""Times that a request may lose its place to one of better priority. After them it stays until it ends."""


def departs(queue_len: int, oldest_wait_s: float, max_num_seqs: int, max_wait_s: float) -> bool:
    """Whether a waiting batch leaves now, like a ferry: when it is full, or when its oldest has waited long enough."""
    return queue_len >= max_num_seqs or oldest_wait_s >= max_wait_s


def share(needs: Sequence[int], budget: int, limit: int, whole: bool = False) -> list[int]:
    """Tokens of one step for each request; ``needs`` says how many each could use, in the order they are served.

    Nobody gets more than ``limit``, all together not more than ``budget``. First come, first served: who is behind gets
    what is left. ``whole`` (chunked prefill off): a need is met in full or not at all, and nobody overtakes the first
    that is not met, or a long prompt would wait for ever. Only a need that no step could ever meet is cut all the same.
    """
    shares = [0] * len(needs)
    left = budget
    for index, need in enumerate(needs):
        part = need if need < limit else limit
        if part > left:
            if whole and need <= budget:
                break
            part = left
        shares[index] = part
        left -= part
        if left == 0:
            break
    return shares


# Who goes before whom. (For lpm see `workbench.engine.longest_head_first`.) A rank never changes, although waiting
# makes a request more urgent: all age at the same rate, so the order of two requests is the same at all times.
# (p₁ − wait₁/a < p₂ − wait₂/a, with wait = now − arrival: "now" falls out on both sides.) And nothing starves: what
# arrives late enough ranks behind, whatever its priority.


def first_come(request: Request) -> float:
    return 0.0


def by_priority(request: Request) -> float:
    """The lower value goes first, as in vLLM."""
    return request.priority + request.arrival_time / AGING_S


def by_prompt_length(request: Request) -> float:
    return request.num_prompt_tokens + request.arrival_time * AGING_TOKENS_PER_S


def by_cached_head(request: Request, num_cached_tokens: int = 0) -> float:
    """``lpm``: the longest cached head first. What is cached changes, so `Scheduler` ranks those that wait anew.

    A request that has waited a second longer goes before one that has `AGING_TOKENS_PER_S` more tokens cached.
    """
    return request.arrival_time * AGING_TOKENS_PER_S - num_cached_tokens


RANKS: dict[str, Callable[[Request], float]] = {
    "fcfs": first_come,
    "priority": by_priority,
    "shortest-prefill-first": by_prompt_length,
    "lpm": by_cached_head,
}


def may_displace(request: Request, other: Request) -> bool:
    """Whether a waiting ``request`` may take the place of the running ``other``: only for a better priority."""
    return request.priority < other.priority and request.rank < other.rank and other.num_displaced < MAX_DISPLACED


class Turn(NamedTuple):
    """What a step tries: to serve some of the running requests, with or without letting others join."""

    served: list[Request]
    joins: bool


class Continuous:
    """Whoever is done leaves at once, and whoever waits joins as soon as there is room."""

    keeps_seats = False
    """Whether who is done keeps its seat and its blocks until the whole batch is done."""
    waits_for = "max_num_seqs"
    """Why a request that may not join is left out."""
    more_may_come = False
    """Whether further requests may arrive. A batch never waits for company that cannot come."""

    def __init__(self, config: EngineConfig) -> None:
        pass

    def may_join(self, waiting: Sequence[Request], running: Sequence[Request], now: float) -> int:
        """How many of the waiting requests, from the first on, may join in this step."""
        return len(waiting)

    def joined(self, count: int) -> None:
        """``count`` of those that might join did."""

    def close(self) -> None:
        """There is no room for more."""

    def turns(self, running: list[Request]) -> list[Turn]:
        """What a step tries, in order, until something can be computed."""
        return [Turn(running, True)]

    def is_done(self, running: Sequence[Request], waiting: Sequence[Request]) -> bool:
        """Whether a batch that keeps its seats may give them up."""
        return False

    def wake_time(self, waiting: Sequence[Request], running: Sequence[Request], now: float) -> float:
        """When the next step has something to do if no request comes before; ``inf``: never."""
        return now if waiting or running else math.inf


class PrefillFirst(Continuous):
    """A step computes prompts or decodes, never both, and prompts go first: running answers stand still meanwhile.

    (One that comes back from the host with one token left joins like a prompt.)
    """

    def turns(self, running: list[Request]) -> list[Turn]:
        decoding: list[Request] = []
        catching_up: list[Request] = []
        for request in running:
            decodes = request.num_computed_tokens == len(request.token_ids) - 1 >= request.num_prompt_tokens
            (decoding if decodes else catching_up).append(request)
        return [Turn(catching_up, True), Turn(decoding, False)]


class Static(Continuous):
    """A batch leaves when it is full, nobody joins it on the way, and all its answers return when the slowest is done.

    Until then whoever is done keeps its seat, and its blocks too unless another member runs out of them.
    """

    keeps_seats = True
    waits_for = "waiting_batch"
    max_wait_s = math.inf

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.batch_size = min(config.max_num_seqs, config.max_num_queued_reqs or config.max_num_seqs)
        """Where fewer may queue than may run, a full queue is a full batch: it would wait for ever for more."""
        self.departs = departs
        self.left = 0
        """Members of the batch that have not joined it yet, because their prompts exceed the budget of a step."""

    def may_join(self, waiting: Sequence[Request], running: Sequence[Request], now: float) -> int:
        if not running:
            self.left = self.batch_size if self._leaves(waiting, now) else 0
        self.left = min(self.left, len(waiting))
        return self.left

    def joined(self, count: int) -> None:
        self.left -= count

    def close(self) -> None:
        self.left = 0

    def is_done(self, running: Sequence[Request], waiting: Sequence[Request]) -> bool:
        return (self.left == 0 or not waiting) and all(request.status is Status.HELD for request in running)

    def wake_time(self, waiting: Sequence[Request], running: Sequence[Request], now: float) -> float:
        if running or (waiting and self._leaves(waiting, now)):
            return now
        if not waiting or math.isinf(self.max_wait_s):
            return math.inf
        oldest = min(request.arrival_time for request in waiting)
        wake = oldest + self.max_wait_s
        while wake - oldest < self.max_wait_s:  # rounding must not wake anybody a moment too early, again and again
            wake = math.nextafter(wake, math.inf)
        return wake if wake > now else math.inf

    def _leaves(self, waiting: Sequence[Request], now: float) -> bool:
        if not waiting:
            return False
        # Who has begun already and was preempted does not wait for company a second time.
        if not self.more_may_come or any(request.num_preemptions for request in waiting):
            return True
        oldest = min(request.arrival_time for request in waiting)
        return self.departs(len(waiting), now - oldest, self.batch_size, self.max_wait_s)


class Dynamic(Static):
    """As static, but a batch also leaves when its oldest member has waited ``max_wait_ms``."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        wait_ms = DEFAULT_MAX_WAIT_MS if config.max_wait_ms is None else config.max_wait_ms
        self.max_wait_s = wait_ms / 1e3


BATCHING: dict[str, type[Continuous]] = {
    "continuous": Continuous,
    "prefill-first": PrefillFirst,
    "static": Static,
    "dynamic": Dynamic,
}
