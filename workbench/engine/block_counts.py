"""BlockCounts: what a step changed in the pool, in the host's store and in what the prefix cache was asked for."""

from __future__ import annotations

from workbench.kv.block_store import BlockStore
from workbench.kv.caching_pool import CachingPool, PrefixStats
from workbench.kv.pool import BlockPool

_NAMES = ("allocated", "freed", "shared", "swapped_out", "swapped_in", "evicted")


class BlockCounts:
    """Pools count without end; a trace tells the differences since the step before."""

    def __init__(self, pool: BlockPool, host: BlockStore | None) -> None:
        self.pool, self.host = pool, host
        self.cache = pool if isinstance(pool, CachingPool) else None
        self._before = self._now()

    def since_the_last_call(self) -> tuple[dict[str, int], PrefixStats]:
        """``blocks`` as a trace tells them, and the queries of requests that were admitted meanwhile."""
        now = self._now()
        changes = [after - before for after, before in zip(now, self._before, strict=True)]
        self._before = now
        cached = {} if self.cache is None else {"cached": self.cache.num_cached}
        blocks = dict(zip(_NAMES, changes, strict=False)) | cached
        blocks |= {"free": self.pool.num_free, "total": self.pool.num_blocks}
        return blocks, PrefixStats(*changes[len(_NAMES) :])

    def _now(self) -> tuple[int, ...]:
        pool, host = self.pool, self.host
        moved = (host.allocated, host.restored) if host else (0, 0)
        return (
            pool.allocated,
            pool.freed,
            pool.shared,
            *moved,
            pool.evicted,
            *(self.cache.stats if self.cache else ()),
        )
