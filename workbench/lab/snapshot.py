"""PoolSnapshot: the block tables as they stood after a step. A trace counts blocks; the pool knows which they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    num_blocks: int
    block_size: int
    tables: Mapping[str, tuple[int, ...]]
    """Block ids in order, by owner: token i of the owner lies in block ``table[i // block_size]``."""

    @classmethod
    def of(cls, pool: BlockPool) -> PoolSnapshot:
        """A copy: what the pool does later does not change it."""
        tables = {owner: tuple(table) for owner, table in pool.tables.items()}
        return cls(pool.num_blocks, pool.block_size, tables)

    def owners(self) -> list[list[str]]:
        """For each block, in order of its id, who holds it: nobody, one, or those that share it."""
        names: list[list[str]] = [[] for _ in range(self.num_blocks)]
        for owner, table in self.tables.items():
            for block in table:
                names[block].append(owner)
        return names


class Watch:
    """Keeps the trace of every step and the pool after it: ``with Watch(engine) as run: …``, then ``run.traces``,
    ``run.snapshots``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.traces: list[StepTrace] = []
        self.snapshots: list[PoolSnapshot] = []

    def __call__(self, trace: StepTrace) -> None:
        self.traces.append(trace)
        self.snapshots.append(PoolSnapshot.of(self._engine.pool))

    def __enter__(self) -> Watch:
        self._engine.listeners.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._engine.listeners.remove(self)
