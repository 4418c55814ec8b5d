"""How full a pool's blocks are: tokens stored in each, by the block tables and what the traces say was computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.snapshot import PoolSnapshot


class PoolUse(NamedTuple):
    """The slots of a pool after one step."""

    requests: int
    """Block tables."""
    blocks: int
    """In use; a shared one counts once."""
    stored: int
    """Slots of these that hold a token."""
    empty: int
    """The others of these."""


def computed_tokens(traces: Sequence[StepTrace]) -> dict[str, int]:
    """Tokens of each request whose keys and values are in the cache."""
    return {
        item["request_id"]: item["num_computed_tokens"] + item["num_tokens"]
        for trace in traces
        for item in trace.scheduled
    }


def block_fill(snapshot: PoolSnapshot, computed: dict[str, int]) -> list[int]:
    """Tokens in each block; of a shared one what the fullest of its holders has written."""
    fill = [0] * snapshot.num_blocks
    for owner, table in snapshot.tables.items():
        for place, block in enumerate(table):
            tokens = min(max(computed.get(owner, 0) - place * snapshot.block_size, 0), snapshot.block_size)
            fill[block] = max(fill[block], tokens)
    return fill


def pool_use(traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot]) -> list[PoolUse]:
    """For each step of a run, as `Watch` keeps it. Raises UsageError for snapshots that do not belong to the traces."""
    if len(snapshots) != len(traces):
        raise UsageError(f"{len(snapshots)} snapshots for {len(traces)} traces: give the pool after each step")
    found, computed = [], dict[str, int]()
    for trace, snapshot in zip(traces, snapshots, strict=True):
        computed |= computed_tokens([trace])
        stored = sum(block_fill(snapshot, computed))
        blocks = len({block for table in snapshot.tables.values() for block in table})
        found.append(PoolUse(len(snapshot.tables), blocks, stored, blocks * snapshot.block_size - stored))
    return found
