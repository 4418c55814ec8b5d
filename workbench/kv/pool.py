"""BlockPool: who holds which KV block.

The KV cache is cut into blocks of ``block_size`` tokens (PagedAttention, Kwon et al. 2023, section 4). A request's
*block table* lists its blocks in order; a block may stand in several tables, and its reference count is the number of
tables that hold it. The pool only counts; the tensors are the runner's, reached by block id.
"""

from __future__ import annotations

from collections.abc import Sequence


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free. The scheduler asks first, so this is a bug in its caller."""


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, and one table of block ids for each owner (a request id)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tables: dict[str, list[int]] = {}
        self.ref_counts = [0] * num_blocks
        # A stack: the block freed last is used first, because its memory is the likeliest to lie in a processor cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self.allocated = 0
        self.freed = 0
        self.shared = 0
        """Running totals: blocks taken from the free list, returned to it, and references added to filled blocks."""
        self.evicted = 0
        """Running total: cached blocks given up."""

    @property
    def num_free(self) -> int:
        """Blocks in which nothing of use lies."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that no table holds and whose content is kept: none, in a pool that keeps nothing."""
        return 0

    @property
    def num_available(self) -> int:
        """Blocks that `grow` can give: free ones, and cached ones where there are any."""
        return len(self._free)

    def is_kept(self, block: int) -> bool:
        """Whether anything of use lies in the block."""
        return self.ref_counts[block] > 0

    @property
    def capacity(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens of one request need."""
        return -(-num_tokens // self.block_size)

    def open(self, owner: str) -> list[int]:
        """A new, empty block table for ``owner``. The pool keeps the list; only the pool changes it."""
        if owner in self.tables:
            raise ValueError(f"{owner!r} has a block table already")
        table: list[int] = []
        self.tables[owner] = table
        return table

    def grow(self, owner: str, num_blocks: int) -> None:
        """Appends ``num_blocks`` free blocks to the table of ``owner``: all of them or, with OutOfBlocks, none."""
        if num_blocks > len(self._free):
            raise OutOfBlocks(f"{owner!r} asked for {num_blocks} blocks and {len(self._free)} are free")
        table = self.tables[owner]
        for _ in range(num_blocks):
            block = self._free.pop()
            self.ref_counts[block] = 1
            table.append(block)
        self.allocated += num_blocks

    def share(self, owner: str, blocks: Sequence[int]) -> None:
        """Appends blocks that another table holds; each gains a reference."""
        for block in blocks:
            if self.ref_counts[block] == 0:
                raise ValueError(f"block {block} is free, so {owner!r} cannot share it")
        for block in blocks:
            self.ref_counts[block] += 1
        self.tables[owner].extend(blocks)
        self.shared += len(blocks)

    def follow(self, owner: str, donor: str, num_blocks: int, token_ids: Sequence[int]) -> None:
        """Begins the empty table of ``owner``, whose tokens are ``token_ids``, with the donor's first blocks."""
        self.share(owner, self.tables[donor][:num_blocks])

    def lost(self) -> None:
        """Told by whoever owns the tensors: another pool has taken them over, so nothing is in the blocks any more."""

    def release(self, owner: str) -> None:
        """Closes the table of ``owner``, last block first: a head that others may want is reused last."""
        for block in reversed(self.tables.pop(owner)):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free.append(block)
                self.freed += 1

    def check(self) -> None:
        """Raises AssertionError unless every block is free, cached or held, only one of them, and each count is true.

        ``free + cached + in use = total``; a block's reference count is the number of tables that hold it; no table
        holds a block twice.
        """
        held = [0] * self.num_blocks
        for owner, table in self.tables.items():
            _require(len(set(table)) == len(table), f"{owner!r} holds a block twice: {table}")
            for block in table:
                held[block] += 1
        for block, (count, holders) in enumerate(zip(self.ref_counts, held, strict=True)):
            _require(count == holders, f"block {block} counts {count} references and {holders} tables hold it")
        free = set(self._free)
        _require(len(free) == len(self._free), "a block lies in the free list twice")
        for block in self._free:
            _require(held[block] == 0, f"block {block} is free and in use")
        in_use = sum(1 for holders in held if holders)
        cached = self.num_cached
        told = (
            f"{len(free)} free + {cached} cached + {in_use} in use" if cached else f"{len(free)} free + {in_use} in use"
        )
        _require(
            len(free) + cached + in_use == self.num_blocks, f"{told} is not {self.num_blocks} in total: a block leaked"
        )


def _require(truth: bool, message: str) -> None:
    # Not a bare assert: the checks must hold under `python -O` too.
    if not truth:
        raise AssertionError(message)
