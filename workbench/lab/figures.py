"""Pictures of what the engine did, drawn from traces and pools alone. Pure functions; nothing is run or changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.engine.trace import StepTrace
from workbench.kv.pool import BlockPool
from workbench.lab.snapshot import PoolSnapshot
from workbench.lab.story import events, lanes
from workbench.lab.table import Cell, Table

_WORDS = {
    "p": "p16 = 16 prompt tokens computed",
    "d": "d = decode: one token computed, the next sampled",
    "r": "r16 = 16 tokens computed again after a preemption",
    "w": "w = waits",
    "h": "h = held: its answer is complete, and it keeps its seat until the batch is done",
    "x": "x = preempted",
    "*": "* = caught up, so the next token was sampled too",
    "!": "! = finished",
}


def step_table(traces: Sequence[StepTrace]) -> Table:
    """One row a step: what was computed, who was left out and why, who got a token, blocks taken and returned."""
    rows = []
    for trace in traces:
        computed = "; ".join(_share(item) for item in trace.scheduled) or "nothing"
        left_out = [f"{name}: preempted" for name in trace.preempted]
        left_out += [f"{skip['request_id']}: {skip['reason']}" for skip in trace.skipped]
        left_out += [f"{name}: held" for name in trace.held]
        ended = {end["request_id"]: end["reason"] for end in trace.finished}
        rows.append(
            [
                trace.step,
                Cell(computed, _strongest(trace)),
                Cell("; ".join(left_out), "alert" if trace.preempted else "quiet" if left_out else ""),
                ", ".join(new["request_id"] for new in trace.new_tokens),
                ", ".join(f"{name} ({reason})" for name, reason in ended.items()),
                trace.blocks["allocated"],
                trace.blocks["freed"],
                f"{trace.blocks['free']} of {trace.blocks['total']}",
            ]
        )
    head = ["step", "computed", "left out", "new token", "finished", "blocks +", "blocks −", "free"]
    return Table(head, rows)


def timeline(traces: Sequence[StepTrace]) -> Table:
    """One row a request in order of arrival, one column a step; the last rows count tokens and blocks in use.

    The caption explains only the signs that occur.
    """
    cells = [_column(trace) for trace in traces]
    names = list(lanes(traces))
    rows: list[list[Cell | str | int]] = [[name, *(column.get(name, Cell("")) for column in cells)] for name in names]
    rows.append(["tokens", *(sum(item["num_tokens"] for item in trace.scheduled) for trace in traces)])
    rows.append(["blocks", *(trace.blocks["total"] - _available(trace) for trace in traces)])
    used = "".join(cell.text for column in cells for cell in column.values())
    caption = "; ".join(text for sign, text in _WORDS.items() if sign in used)
    return Table(["step", *(str(trace.step) for trace in traces)], rows, caption)


def holders(pool: BlockPool) -> list[str]:
    """For each block of the pool, in order of its id, the owner's name; several joined by ``+``; empty where free."""
    return ["+".join(owners) for owners in PoolSnapshot.of(pool).owners()]


def pool_map(snapshots: Sequence[Sequence[str]], first_step: int = 0) -> Table:
    """One row a block, one column a snapshot (what `holders` returned after a step): who holds the block."""
    owners = list(dict.fromkeys(name for snapshot in snapshots for name in snapshot if name))
    tones = {name: f"owner{index % 4}" for index, name in enumerate(owners)}
    blocks = len(snapshots[0]) if snapshots else 0
    rows = [
        [f"block {block}", *(Cell(snapshot[block] or "·", tones.get(snapshot[block], "")) for snapshot in snapshots)]
        for block in range(blocks)
    ]
    head = ["after step", *(str(first_step + number) for number in range(len(snapshots)))]
    return Table(head, rows, "· = free")


def _available(trace: StepTrace) -> int:
    """Blocks that nobody holds: free, or only cached."""
    return trace.blocks["free"] + trace.blocks.get("cached", 0)


def block_tables(pool: BlockPool) -> Table:
    """One row an owner, its blocks in order: token i lies in the one at ``i // block_size``; then the free blocks, and
    where the pool keeps some that nobody holds, the cached ones."""
    rows: list[list[Cell | str | int]] = [
        [owner, " ".join(map(str, table)), len(table)] for owner, table in pool.tables.items()
    ]
    cached = [block for block, count in enumerate(pool.ref_counts) if count == 0 and pool.is_kept(block)]
    free = [block for block in range(pool.num_blocks) if not pool.is_kept(block)]
    for name, blocks in (("cached", cached), ("free", free)):
        if blocks or name == "free":
            rows.append(
                [Cell(name, "quiet"), Cell(" ".join(map(str, blocks)), "quiet"), Cell(str(len(blocks)), "quiet")]
            )
    return Table(["owner", "block ids", "count"], rows)


def _share(item: dict[str, Any]) -> str:
    start, count = item["num_computed_tokens"], item["num_tokens"]
    where = f"token {start}" if count == 1 else f"tokens {start}–{start + count - 1}"
    return f"{item['request_id']}: {where} ({item['kind']})"


def _strongest(trace: StepTrace) -> str:
    kinds = {item["kind"] for item in trace.scheduled}
    return next((kind for kind in ("recompute", "prefill", "decode") if kind in kinds), "")


def _column(trace: StepTrace) -> dict[str, Cell]:
    """The signs of one step by request id."""
    return {name: Cell(event.sign, event.tone) for name, event in events(trace).items()}
