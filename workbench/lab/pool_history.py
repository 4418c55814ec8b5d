"""PoolHistory: every block of a pool after every step of a run, as a grid of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.snapshot import PoolSnapshot, check_steps
from workbench.lab.story import sentence

FREE, CACHED, USED, SHARED = "free", "cached", "in use", "shared"
STATES = (SHARED, USED, CACHED, FREE)
"""Where as many blocks of a row are in one state as in another, the first of these stands for it."""
MAX_ROWS = 128
MAX_BLOCKS = 4096


class Square(NamedTuple):
    """What a block, or most of a row of blocks, was after a step."""

    state: str
    owner: str = ""
    """Who holds it; of several the first."""


class PoolHistory:
    """``snapshots[i]`` is the pool after ``traces[i]`` (`Watch` keeps both).

    Of more than `MAX_ROWS` blocks, ``group`` neighbours share a row, which shows what most of them are. Counts are of
    blocks all the same. Raises UsageError without steps, for more than 400, for more than 4096 blocks, and for
    snapshots that do not belong to the traces.
    """

    def __init__(self, traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot]) -> None:
        check_steps(traces)
        if len(snapshots) != len(traces):
            raise UsageError(f"{len(snapshots)} snapshots for {len(traces)} traces: give the pool after each step")
        self.num_blocks, self.block_size = snapshots[0].num_blocks, snapshots[0].block_size
        if any((one.num_blocks, one.block_size) != (self.num_blocks, self.block_size) for one in snapshots):
            raise UsageError("the snapshots are of pools of different sizes: give those of one engine")
        if self.num_blocks > MAX_BLOCKS:
            raise UsageError(f"a pool of {self.num_blocks} blocks is more than the {MAX_BLOCKS} of a map: use fewer")
        self.traces = tuple(traces)
        self.group = -(-self.num_blocks // MAX_ROWS)
        self.num_rows = -(-self.num_blocks // self.group)
        self.owners = tuple(dict.fromkeys(owner for one in snapshots for owner in one.tables))
        self.columns: list[list[Square]] = []
        """For each step the squares from the first row down."""
        self.counts: list[dict[str, int]] = []
        """For each step the number of blocks in each state."""
        self.evicted: list[dict[int, tuple[int, ...]]] = []
        """For each step the blocks that were given up in it, by row."""
        for snapshot in snapshots:
            squares = _squares(snapshot)
            found = Counter(square.state for square in squares)
            self.counts.append({state: found[state] for state in STATES})
            rows = [squares[at : at + self.group] for at in range(0, self.num_blocks, self.group)]
            self.columns.append([_most(row) for row in rows])
            gone: dict[int, tuple[int, ...]] = {}
            for block in snapshot.evicted:
                gone[block // self.group] = (*gone.get(block // self.group, ()), block)
            self.evicted.append(gone)

    def row_name(self, row: int) -> str:
        """``7``, or ``28–31`` where a row stands for several blocks."""
        first, last = row * self.group, min((row + 1) * self.group, self.num_blocks) - 1
        return str(first) if first == last else f"{first}–{last}"

    @property
    def rule(self) -> str:
        """What a row stands for, in words."""
        if self.group == 1:
            return f"one row a block of {self.block_size} tokens"
        return (
            f"one row for {self.group} blocks of {self.block_size} tokens: the state that most of them are in; counts "
            "are of blocks"
        )

    def told(self, at: int) -> str:
        """What the pool is after step number ``at`` of this run, from 0, and what was given up in it."""
        counts, gone = self.counts[at], [block for blocks in self.evicted[at].values() for block in blocks]
        used = counts[USED] + counts[SHARED]
        text = f"after step {self.traces[at].step}: {used} in use, {counts[SHARED]} of them shared; "
        text += f"{counts[CACHED]} cached, {counts[FREE]} free of {self.num_blocks}"
        if gone:
            some = " ".join(map(str, gone[:12])) + (" …" if len(gone) > 12 else "")
            text += f"; given up in this step: {some} ({len(gone)})"
        return text

    def label(self, at: int) -> str:
        """`told`, and what was computed."""
        return f"{self.told(at)}. {sentence(self.traces[at])}"


def _squares(snapshot: PoolSnapshot) -> list[Square]:
    squares = [Square(FREE)] * snapshot.num_blocks
    for block in snapshot.cached:
        squares[block] = Square(CACHED)
    for block, names in enumerate(snapshot.owners()):
        if names:
            squares[block] = Square(SHARED if len(names) > 1 else USED, names[0])
    return squares


def _most(squares: Sequence[Square]) -> Square:
    """The state that most are in, and of those the owner of most."""
    states = Counter(square.state for square in squares)
    state = max(STATES, key=lambda state: states[state])
    owners = Counter(square.owner for square in squares if square.state == state)
    return Square(state, owners.most_common(1)[0][0])
