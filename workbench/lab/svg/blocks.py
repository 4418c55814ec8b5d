"""The KV pool after a step: which request holds which block, how full it is, who shares it; and the block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab.block_fill import block_fill, computed_tokens
from workbench.lab.snapshot import PoolSnapshot, check_steps
from workbench.lab.story import sentence
from workbench.lab.svg.canvas import FONT, Canvas, labels, text_width
from workbench.lab.svg.cells import WIDTH, Frames, frame_steps

MAX_BLOCKS = 1024
MAX_TABLES = 16
"""Block tables drawn under the grid; with more requests at once only the grid is."""
_LEFT, _TOP = 112, 40
_GRIDS = ((64, 16, 52.0, 38.0, 6), (256, 32, 26.0, 24.0, 3), (MAX_BLOCKS, 48, 17.5, 18.0, 2))
"""Blocks up to, columns, width and height of a block, and letters of an owner's name in it."""
_TABLE_CELL, _TABLE_ROW = 36.0, 22.0


def render_block_table(
    traces: Sequence[StepTrace],
    snapshots: Sequence[PoolSnapshot],
    upto: int | None = None,
    *,
    request_id: str | None = None,
) -> str:
    """SVG of the pool after the first ``upto`` steps, at least one (all unless said), laid out for the whole run.

    ``snapshots[i]`` is the pool after ``traces[i]`` (`Watch` keeps both). With ``request_id`` only its table is drawn
    below, with the tokens that each block holds. Raises UsageError for more than 1024 blocks, snapshots that do not
    belong to the traces, or a request that never held a block.
    """
    shown = check_steps(traces, upto)
    if shown == 0:
        raise UsageError("upto=0: a block table stands after a step, so the least is 1")
    plan = _layout(traces, snapshots, request_id)
    snapshot, before = snapshots[shown - 1], snapshots[shown - 2] if shown > 1 else None
    fill = block_fill(snapshot, computed_tokens(traces[:shown]))
    canvas = Canvas(plan.width, plan.height)
    step = traces[shown - 1].step
    owners = snapshot.owners()
    used, shared = sum(bool(names) for names in owners), sum(len(names) > 1 for names in owners)
    size = snapshot.block_size
    head = f"after step {step}: {used} of {snapshot.num_blocks} blocks of {size} tokens in use, {shared} shared"
    canvas.text(8, 16, head, FONT + 1, bold=True)
    old = before.owners() if before else [[] for _ in owners]
    for block, names in enumerate(owners):
        _block(canvas, plan, block, names, fill[block], size, new=bool(names) and names != old[block])
    if plan.lanes:
        _tables(canvas, plan, snapshot, fill, request_id)
    for number, words in enumerate(plan.legend):
        canvas.text(8, plan.legend_top + 16 * number + 11, words, FONT - 1)
    held = "; ".join(f"{owner} holds {' '.join(map(str, table))}" for owner, table in snapshot.tables.items())
    return canvas.svg("KV blocks", f"{head}. {held or 'Every block is free'}. {sentence(traces[shown - 1])}.")


def block_table_frames(
    traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot], *, request_id: str | None = None
) -> Frames:
    """A frame after each step, for a `Player`; of a long run only every second, third, … step, and the last."""
    last = render_block_table(traces, snapshots, request_id=request_id)
    steps = frame_steps(len(traces), len(last))
    frames = [render_block_table(traces, snapshots, step, request_id=request_id) for step in steps]
    return Frames(frames, [sentence(traces[step - 1]) for step in steps])


@dataclass(frozen=True)
class _Layout:
    columns: int
    cell: tuple[float, float]
    short: dict[str, str]
    """A label for each owner that fits into a block."""
    names: dict[str, str]
    """A label for each owner that fits beside its table."""
    tones: dict[str, str]
    lanes: dict[str, int]
    """The row in which an owner's table begins; empty where no tables are drawn."""
    per_row: int
    tables_top: float
    legend: list[str]
    legend_top: float
    width: float
    height: float


def _layout(traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot], request_id: str | None) -> _Layout:
    if len(snapshots) != len(traces):
        raise UsageError(f"{len(snapshots)} snapshots for {len(traces)} traces: give the pool after each step")
    blocks = snapshots[0].num_blocks
    if any((snapshot.num_blocks, snapshot.block_size) != (blocks, snapshots[0].block_size) for snapshot in snapshots):
        raise UsageError("the snapshots are of pools of different sizes: give those of one engine")
    grid = next((grid for grid in _GRIDS if blocks <= grid[0]), None)
    if grid is None:
        raise UsageError(f"a pool of {blocks} blocks is more than the {MAX_BLOCKS} that can be drawn: use fewer")
    _, columns, width, height, letters = grid
    owners = list(dict.fromkeys(owner for snapshot in snapshots for owner in snapshot.tables))
    if request_id is not None and request_id not in owners:
        raise UsageError(f"request {request_id!r} held no block after any of these steps; those that did: {owners}")
    longest = [max(len(snapshot.tables.get(owner, ())) for snapshot in snapshots) for owner in owners]
    per_row = int((WIDTH - _LEFT - 16) // _TABLE_CELL)
    lanes, rows = _lanes(snapshots, dict(zip(owners, (-(-count // per_row) or 1 for count in longest), strict=True)))
    if request_id is not None:
        per_row //= 2  # each block also says which tokens it holds
        lanes, rows = {request_id: 0}, -(-longest[owners.index(request_id)] // per_row) or 1
    elif max(len(snapshot.tables) for snapshot in snapshots) > MAX_TABLES:
        lanes, rows = {}, 0
    tables_top = _TOP + -(-blocks // columns) * height + 30
    legend_top = tables_top + (rows * _TABLE_ROW + 8 if lanes else -20)
    legend = ["a block: its number, its holder, filled from the left as far as it holds tokens; empty = free"]
    if any(len(names) > 1 for snapshot in snapshots for names in snapshot.owners()):
        legend.append("double frame = shared: several tables hold the block")
    legend.append("thick frame = new holder in this step")
    if not lanes and owners:
        legend.append(f"over {MAX_TABLES} requests at once: their tables are not drawn; request_id=… draws one")
    short = labels(owners, letters)
    return _Layout(
        columns=columns,
        cell=(width, height),
        short=short,
        names={
            # Where a block shows a number for a long name, the table says whose it is.
            owner: f"{short[owner]} {label}" if short[owner].startswith("#") and short[owner] != owner else label
            for owner, label in labels(owners, 12).items()
        },
        tones={owner: f"owner{index % 4}" for index, owner in enumerate(owners)},
        lanes=lanes,
        per_row=per_row,
        tables_top=tables_top,
        legend=legend,
        legend_top=legend_top,
        width=WIDTH,
        height=legend_top + 16 * len(legend) + 8,
    )


def _lanes(snapshots: Sequence[PoolSnapshot], rows_of: dict[str, int]) -> tuple[dict[str, int], int]:
    """For each owner the row where its table begins, the same while it lives, free again after; and all rows needed."""
    found: dict[str, int] = {}
    last = {owner: index for index, snapshot in enumerate(snapshots) for owner in snapshot.tables}
    occupied: list[int] = []
    """For each row the last snapshot in which it is used."""
    for index, snapshot in enumerate(snapshots):
        for owner in snapshot.tables:
            if owner in found:
                continue
            need, row = rows_of[owner], 0
            while any(busy >= index for busy in occupied[row : row + need]):
                row += 1
            occupied += [-1] * (row + need - len(occupied))
            occupied[row : row + need] = [last[owner]] * need
            found[owner] = row
    return found, len(occupied)


def _block(canvas: Canvas, plan: _Layout, block: int, names: list[str], fill: int, size: int, new: bool) -> None:
    width, height = plan.cell
    x = 8 + (block % plan.columns) * width
    y = 26 + (block // plan.columns) * height
    holder = "+".join(names)
    what = f"block {block}: {holder}, {fill} of {size} tokens" if names else f"block {block}: free"
    canvas.open(what, block=block, holders=holder, fill=fill)
    inner_width, inner_height = width - 3, height - 3
    if names:
        canvas.rect(x, y, inner_width * fill / size, inner_height, plan.tones[names[0]], 0)
    canvas.rect(x, y, inner_width, inner_height, "" if names else "quiet", 2.4 if new else 0.7 if names else 0.3)
    if len(names) > 1:
        canvas.rect(x + 2.5, y + 2.5, inner_width - 5, inner_height - 5, "", 0.7)
    if names:
        text = "+".join(plan.short[name] for name in names)
        if text_width(text, FONT - 1) > inner_width - 4:
            text = f"{plan.short[names[0]]}+{len(names) - 1}" if len(names) > 1 else plan.short[names[0]]
        font = min(FONT, inner_height * 0.55)
        while text_width(text, font) > inner_width - 1 and font > 6:
            font -= 1
        canvas.text(x + inner_width / 2, y + inner_height - 6, text, font, "middle", bold=True)
    if height > 30:
        canvas.text(x + 4, y + 12, str(block), FONT - 3)
        if names:
            canvas.text(x + inner_width - 4, y + 12, f"{fill}/{size}", FONT - 3, "end")
    canvas.close()


def _tables(canvas: Canvas, plan: _Layout, snapshot: PoolSnapshot, fill: list[int], request_id: str | None) -> None:
    canvas.text(8, plan.tables_top - 10, "block tables: the blocks of each request in order", FONT, bold=True)
    width = _TABLE_CELL * (2 if request_id is not None else 1)
    size = snapshot.block_size
    for owner, table in snapshot.tables.items():
        if owner not in plan.lanes:
            continue
        top = plan.tables_top + plan.lanes[owner] * _TABLE_ROW
        canvas.open(f"{owner}: {len(table)} blocks", table=owner, blocks=" ".join(map(str, table)))
        canvas.text(_LEFT - 8, top + 14, plan.names[owner], FONT - 1, "end")
        for place, block in enumerate(table):
            x = _LEFT + (place % plan.per_row) * width
            y = top + (place // plan.per_row) * _TABLE_ROW
            canvas.rect(x, y, width - 3, _TABLE_ROW - 4, plan.tones[owner], 0.7)
            text = str(block)
            if request_id is not None:
                last = place * size + fill[block] - 1
                text += f": {place * size}–{last}" if fill[block] else ": empty"
            canvas.text(x + (width - 3) / 2, y + 13, text, FONT - 1, "middle")
        canvas.close()
