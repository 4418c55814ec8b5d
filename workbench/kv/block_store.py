"""BlockStore: blocks in a slower, larger memory, for keys and values that must leave the pool and may come back.

It keeps its accounts as the pool does, and says which blocks are to be copied; whoever owns the tensors copies them.
Swapping a request out is one use of it. A tier of cached blocks is another: an owner is any name.
"""

from __future__ import annotations

from workbench.kv.pool import BlockPool
from workbench.plan import Move

POOL, HOST = "pool", "host"
"""Names in a `Move`: the pool that the model computes with, and the host's memory."""


class BlockStore(BlockPool):
    """``num_blocks`` blocks under ``name``, the store's name in a `Move`."""

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.name = name
        self.restored = 0
        """Running total: blocks that went back to the pool."""

    def save(self, owner: str, pool: BlockPool, num_blocks: int) -> list[Move] | None:
        """Moves that copy the first ``num_blocks`` blocks of the owner's table in the pool to here.

        None, and nothing is taken, when they do not fit. The owner keeps its blocks in the pool.
        """
        if num_blocks > self.num_free:
            return None
        kept = self.open(owner)
        self.grow(owner, num_blocks)
        return [Move(POOL, block, self.name, to) for block, to in zip(pool.tables[owner], kept, strict=False)]

    def restore(self, owner: str, pool: BlockPool) -> list[Move]:
        """Moves that copy what is kept for ``owner`` to the head of its table in the pool; it is kept no longer."""
        kept = list(self.tables[owner])
        if len(kept) > len(pool.tables[owner]):
            raise ValueError(f"{owner!r} needs {len(kept)} blocks in the pool and has {len(pool.tables[owner])}")
        self.release(owner)
        self.restored += len(kept)
        return [Move(self.name, block, POOL, to) for block, to in zip(kept, pool.tables[owner], strict=False)]

    def drop(self, owner: str) -> None:
        """Forgets what is kept for ``owner``, if anything is."""
        if owner in self.tables:
            self.release(owner)
