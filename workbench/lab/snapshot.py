"""PoolSnapshot: the block tables as they stood after a step. A trace counts blocks; the pool knows which they are.

`check_steps`: how many steps one picture of a run holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.kv.pool import BlockPool

MAX_STEPS = 400


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    num_blocks: int
    block_size: int
    tables: Mapping[str, tuple[int, ...]]
    """Block ids in order, by owner: token i of the owner lies in block ``table[i // block_size]``."""
    cached: tuple[int, ...] = ()
    """Blocks that nobody holds and whose content is kept."""
    evicted: tuple[int, ...] = ()
    """Cached blocks given up since the snapshot before, in order, as far as somebody watched (`Watch`)."""

    @classmethod
    def of(cls, pool: BlockPool, evicted: tuple[int, ...] = ()) -> PoolSnapshot:
        """A copy: what the pool does later does not change it."""
        tables = {owner: tuple(table) for owner, table in pool.tables.items()}
        cached = [block for block, count in enumerate(pool.ref_counts) if count == 0 and pool.is_kept(block)]
        return cls(pool.num_blocks, pool.block_size, tables, tuple(cached), evicted)

    def owners(self) -> list[list[str]]:
        """For each block, in order of its id, who holds it: nobody, one, or those that share it."""
        names: list[list[str]] = [[] for _ in range(self.num_blocks)]
        for owner, table in self.tables.items():
            for block in table:
                names[block].append(owner)
        return names


class Watch:
    """Keeps the trace of every step and the pool after it: ``with Watch(engine) as run: …``, then ``run.traces``,
    ``run.snapshots``. A prefix index tells it too which blocks it gives up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.traces: list[StepTrace] = []
        self.snapshots: list[PoolSnapshot] = []
        self._evicted: list[int] = []

    def __call__(self, trace: StepTrace) -> None:
        self.traces.append(trace)
        self.snapshots.append(PoolSnapshot.of(self._engine.pool, tuple(self._evicted)))
        self._evicted.clear()

    def __enter__(self) -> Watch:
        self._engine.listeners.append(self)
        if self._engine.cache is not None:
            # The trace counts evictions; only the index knows which blocks they are, and it tells whoever calls it.
            index = self._engine.cache.index
            self._evict, self._outer = index.evict, index.__dict__.get("evict")
            index.evict = self._watched  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._engine.listeners.remove(self)
        if self._engine.cache is not None:
            index = self._engine.cache.index
            if self._outer is None:
                del index.evict
            else:
                index.evict = self._outer  # type: ignore[method-assign]

    def _watched(self) -> int:
        block = self._evict()
        self._evicted.append(block)
        return block


def check_steps(traces: Sequence[StepTrace], upto: int | None = None) -> int:
    """How many of the steps are drawn. Raises UsageError for no steps, too many, or an ``upto`` outside them."""
    if not traces:
        raise UsageError("there are no traces to draw: run at least one step")
    if len(traces) > MAX_STEPS:
        raise UsageError(
            f"{len(traces)} steps are more than the {MAX_STEPS} that one picture holds: give a part, such as "
            f"traces[:{MAX_STEPS}]"
        )
    if upto is None:
        return len(traces)
    if isinstance(upto, bool) or not isinstance(upto, int) or not 0 <= upto <= len(traces):
        raise UsageError(f"upto={upto!r} is not a number of steps from 0 to {len(traces)}")
    return upto
