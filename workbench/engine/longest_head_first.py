"""``scheduling_policy="lpm"``: who has the longest cached head goes first.

Of a group that shares a head which nobody has computed yet, one goes first and warms the cache for the others (SGLang's
in-batch prefix caching).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.engine import policies
from workbench.engine.places import most_cached
from workbench.engine.request import Request, Status
from workbench.kv.prefix_index import common_head

if TYPE_CHECKING:
    from workbench.engine.places import Joining, Places


class LongestHeadFirst:
    def __init__(self) -> None:
        self._warmed_by: dict[str, Request] = {}
        """In this step: for whom a request waits, to compute the head that they share."""
        self._by_head = False

    def rank(self, places: Places) -> None:
        """Ranks those that wait for the first time anew. Who has run before keeps its rank, or it could starve."""
        self._warmed_by.clear()
        by_head = len(places.waiting) <= policies.LPM_QUEUE_LIMIT
        if not by_head and not self._by_head:
            return  # all are in order of arrival already
        for request in places.waiting:
            if request.num_preemptions == 0:
                cached = len(places.cached_head(request)) * places.pool.block_size if by_head else 0
                request.rank = policies.by_cached_head(request, cached), request.rank[1]
        places.waiting.sort(key=lambda request: request.rank)
        self._by_head = by_head

    def waits(self, places: Places, request: Request, start: int, joining: Sequence[Joining]) -> bool:
        """Whether it is cheaper to wait until somebody else has computed a head that the request shares.

        ``start``: tokens that are cached for it. Somebody else: one that runs and has not come to the end of that head
        yet, or that joins before it in this step. Both go on, so nobody waits for ever.
        """
        least = start + max(policies.WARMING_TOKENS, places.pool.block_size)
        if least > most_cached(request) or places.cache is None:
            return False  # it must compute these tokens itself (``prompt_logprobs``)
        publishes = places.cache.publishes
        others = [r for r in places.running if r.status is Status.RUNNING and publishes(r.request_id)]
        others += [candidate.request for candidate in joining]
        for other in others:
            # Where it has come further and the head is not cached all the same, waiting would not help.
            if other.num_computed_tokens < least <= shared_head(request, other, places.pool.block_size):
                self._warmed_by[request.request_id] = other
                return True
        return False

    def is_warmed(self, request: Request) -> bool:
        """Whether somebody is computing a head for the request in this step."""
        other = self._warmed_by.get(request.request_id)
        return other is not None and other.status is Status.RUNNING


def shared_head(request: Request, other: Request, block_size: int) -> int:
    """Tokens in whole blocks that both begin with and that ``request`` could take over from ``other``."""
    if request.cache_salt != other.cache_salt:
        return 0
    mine, theirs = request.token_ids, other.token_ids
    # The last token of the one is computed in any case, that of the other has no KV yet.
    most = min(len(mine), len(theirs)) - 1
    if mine[:1] != theirs[:1]:
        return 0
    return common_head(mine, theirs, most) // block_size * block_size
