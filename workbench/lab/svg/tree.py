"""A prefix index as a tree: one row a node, indented where it branches, with its blocks, holders and place in line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.lab.prefix_runs import PromptRun
from workbench.lab.svg.canvas import FONT, Canvas, text_width
from workbench.lab.svg.cells import WIDTH, Frames, frame_steps
from workbench.lab.svg.hatch import crossed, dotted, slanted
from workbench.lab.table import Cell, Table
from workbench.lab.token_text import shorten, spaced
from workbench.lab.tree_snapshot import AGAIN, HIT, NEW, Gone, TreeNode, TreeSnapshot

MAX_ROWS = 150
"""Rows that a picture or a table shows; of more nodes the rest is counted."""
_TOP, _ROW, _BOX, _INDENT = 52.0, 26.0, 20.0, 18.0
_TREE = 470.0
"""Pixels of the tree; the columns stand to its right."""
_LEAST_BOX = 150.0
_COLUMNS = (("blocks", 480.0, 140.0), ("state", 624.0, 106.0), ("held by", 734.0, 90.0), ("uses", 828.0, 32.0),
            ("leaves", 864.0, 88.0))  # fmt: skip
_TONES = {HIT: "decode", NEW: "prefill", AGAIN: "recompute"}
_LEGEND = (
    (HIT, "slanted lines: found by this prompt"),
    (NEW, "dots: entered by this prompt"),
    (AGAIN, "crossed at one end: computed again, an equal block was there"),
    ("gone", "dashed and crossed out: given up to make room"),
    ("held", "thick frame: held by a running request, cannot leave"),
    ("cached", "thin frame: cached, nobody holds it"),
)


@dataclass(frozen=True)
class _Row:
    node: TreeNode | None
    gone: Gone | None
    depth: int
    """How far it is indented: by branches, not by nodes, so a chain runs straight down."""
    parent: int | None
    """Row of what it hangs on; None: a root."""
    root: str = ""


def render_prefix_tree(tree: TreeSnapshot, title: str = "", *, rows: int | None = None) -> str:
    """SVG of one moment. ``title``: what happened, above the tree. ``rows``: lays it out for so many rows.

    ``│`` stands between the texts of blocks. Leaves are numbered from 1, the first to be given up.
    """
    laid = _rows(tree)
    left = max(0, len(laid) - MAX_ROWS)
    laid = laid[:MAX_ROWS]
    height = _TOP + _ROW * (max(rows or 0, len(laid)) + bool(left))
    canvas = Canvas(WIDTH, height + 18 * 3 + 10)
    canvas.text(8, 16, shorten(title or f"a {tree.kind} index", 150), FONT + 1, bold=True)
    canvas.text(8, 34, _pool(tree), FONT)
    for name, x, _ in _COLUMNS:
        canvas.text(x, _TOP - 4, name, FONT - 1, bold=True)
    for number, row in enumerate(laid):
        _draw(canvas, tree, laid, number, row)
    if left:
        canvas.text(8, height - 8, f"{left} more rows are not drawn", FONT)
    if not tree.nodes and not tree.gone:
        canvas.text(8 + _INDENT, _TOP + _ROW + 14, "nothing is cached yet", FONT)
    _legend(canvas, height + 4)
    said = "; ".join(" ".join(map(str, row)) for row in prefix_tree_table(tree).rows[:MAX_ROWS])
    return canvas.svg("Prefix index", f"{title}. {_pool(tree)}. {said}")


def prefix_tree_frames(runs: Sequence[PromptRun]) -> Frames:
    """A frame after each prompt of `run_prompts`, all of one size, for a `Player`."""
    if not runs:
        raise UsageError("no prompt has been sent yet: there is no tree to show")
    rows = max(min(len(_rows(run.tree)), MAX_ROWS) for run in runs)
    largest = max(len(render_prefix_tree(run.tree, run.sentence, rows=rows)) for run in runs)
    chosen = [runs[step - 1] for step in frame_steps(len(runs), largest)]
    frames = [render_prefix_tree(run.tree, run.sentence, rows=rows) for run in chosen]
    return Frames(frames, [run.sentence for run in chosen])


def prefix_tree_table(tree: TreeSnapshot) -> Table:
    """The same as a table: tokens, blocks, what the last prompt did, holders, uses and place in the line to leave."""
    rows: list[list[Cell | str | int]] = []
    laid = [row for row in _rows(tree) if not row.root or len(tree.spaces) > 1]
    for row in laid[:MAX_ROWS]:
        indent = "· " * min(row.depth - 1, 12)
        if row.gone is not None:
            number = tree.block_size * len(row.gone.blocks)
            text = indent + shorten(_text(row.gone), 60)
            rows.append([text, number, f"was {_ids(row.gone.blocks)}", Cell("evicted", "alert"), "–", "–", "–"])
        elif row.node is None:
            rows.append([row.root, *["–"] * 6])
        else:
            node = row.node
            tone = next((_TONES[mark] for mark in (HIT, NEW, AGAIN) if mark in node.marks), "")
            number, text = tree.block_size * len(node.blocks), indent + shorten(_text(node), 60)
            rows.append(
                [text, number, _ids(node.blocks), Cell(_state(node), tone), _held(node), node.uses, _line(node) or "–"]
            )
    if len(laid) > MAX_ROWS:
        rows.append([f"{len(laid) - MAX_ROWS} more", *["–"] * 6])
    head = ["node", "tokens", "blocks", "state", "held by", "uses", "leaves"]
    return Table(head, rows, f"{_pool(tree)}; leaves 1 = the first block to be given up")


def _rows(tree: TreeSnapshot) -> list[_Row]:
    """Depth first: under each root its nodes, and what was given up after the node on which it hung."""
    below: dict[int | None, list[int]] = {}
    for at, node in enumerate(tree.nodes):
        below.setdefault(node.parent, []).append(at)
    gone: dict[int | None, list[Gone]] = {}
    for item in tree.gone:
        gone.setdefault(item.parent, []).append(item)
    found: list[_Row] = []
    for space in tree.spaces or ("",):
        root = len(found)
        name = "root" if len(tree.spaces) < 2 else f"root of namespace {space}"
        found.append(_Row(None, None, 0, None, name))
        tops = [at for at in below.get(None, []) if tree.nodes[at].space == space]
        stack = [(at, 1, root) for at in reversed(tops)]
        while stack:
            at, depth, parent = stack.pop()
            row = len(found)
            found.append(_Row(tree.nodes[at], None, depth, parent))
            children = below.get(at, [])
            lost = gone.get(at, [])
            step = depth + (len(children) + len(lost) > 1)
            found += [_Row(None, item, step, row) for item in lost]
            stack += [(child, step, row) for child in reversed(children)]
    # What hung on a root comes last; of several roots nobody knows on which.
    found += [_Row(None, item, 1, 0) for item in gone.get(None, [])]
    return found


def _draw(canvas: Canvas, tree: TreeSnapshot, laid: Sequence[_Row], number: int, row: _Row) -> None:
    y = _TOP + _ROW * number
    x = 8 + min(row.depth * _INDENT, _TREE - _LEAST_BOX)
    width = _TREE - x
    if row.root:
        canvas.text(x, y + 14, row.root, FONT, bold=True)
        return
    assert row.parent is not None
    above = laid[row.parent]
    elbow = 8 + min(above.depth * _INDENT, _TREE - _LEAST_BOX) + 7
    top = _TOP + _ROW * row.parent + _BOX
    if row.depth == above.depth:
        canvas.lines(f"M{elbow:.1f} {top:.1f}V{y:.1f}", 1)
    else:
        canvas.lines(f"M{elbow:.1f} {top:.1f}V{y + _BOX / 2:.1f}H{x:.1f}", 1)
    if row.gone is not None:
        _draw_gone(canvas, row.gone, x, y, width)
        return
    node = row.node
    assert node is not None
    canvas.open(
        f"{_text(node)}: blocks {_ids(node.blocks)}, {_state(node)}",
        node=" ".join(map(str, node.blocks)),
        state=node.state,
        mark=node.mark,
        lock=node.lock,
    )
    kinds = [kind for kind in (HIT, NEW, AGAIN) if kind in node.marks]
    canvas.rect(x, y, width, _BOX, _TONES[kinds[0]] if kinds else "quiet", 2.6 if node.lock else 0.7)
    if HIT in kinds:
        slanted(canvas, x, y, width, _BOX)
    if NEW in kinds:
        dotted(canvas, x, y, width, _BOX)
    if AGAIN in kinds:
        crossed(canvas, x + width - _BOX, y, _BOX, _BOX)
    canvas.text(x + 6, y + 14, _fit(_text(node), width - 12), FONT, bold=bool(kinds))
    cells = (_ids(node.blocks), _state(node), _held(node), str(node.uses), _line(node) or "–")
    for (_, left, room), text in zip(_COLUMNS, cells, strict=True):
        canvas.text(left, y + 14, _fit(text, room), FONT - 1)
    canvas.close()


def _draw_gone(canvas: Canvas, gone: Gone, x: float, y: float, width: float) -> None:
    text, blocks = _text(gone), _ids(gone.blocks)
    canvas.open(f"{text}: blocks {blocks} were given up", gone=" ".join(map(str, gone.blocks)))
    canvas.rect(x, y, width, _BOX, "alert", 0)
    canvas.lines(f"M{x:.1f} {y:.1f}h{width:.1f}v{_BOX:.1f}h{-width:.1f}z", 1, "4 3")
    canvas.lines(f"M{x:.1f} {y + _BOX / 2:.1f}h{width:.1f}", 0.8)
    canvas.text(x + 6, y + 14, _fit(text, width - 12), FONT)
    canvas.text(_COLUMNS[0][1], y + 14, _fit(f"was {blocks}", _COLUMNS[0][2]), FONT - 1)
    canvas.text(_COLUMNS[1][1], y + 14, "evicted", FONT - 1, bold=True)
    canvas.close()


def _legend(canvas: Canvas, y: float) -> None:
    canvas.open(part="legend")
    for at, (kind, words) in enumerate(_LEGEND):
        x, top = 8 + (at % 2) * 480.0, y + 18 * (at // 2)
        if kind == "gone":
            canvas.lines(f"M{x} {top}h16v12h-16zM{x} {top + 6}h16", 1, "3 2")
        else:
            canvas.rect(x, top, 16, 12, _TONES.get(kind, "quiet"), 2.4 if kind == "held" else 0.7)
        for name, pattern in ((HIT, slanted), (NEW, dotted), (AGAIN, crossed)):
            if kind == name:
                pattern(canvas, x, top, 16, 12)
        canvas.text(x + 22, top + 10, words, FONT - 1)
    canvas.close()


def _pool(tree: TreeSnapshot) -> str:
    told = f"{tree.kind} index, blocks of {tree.block_size} token{'' if tree.block_size == 1 else 's'}: "
    told += f"{tree.num_cached} cached, {tree.num_held} held"
    if tree.held_elsewhere:
        told += f", {tree.held_elsewhere} in use and not full"
    return told + (f", {tree.num_free} free of {tree.num_blocks}" if tree.num_blocks is not None else "")


def _state(node: TreeNode) -> str:
    return ", ".join(part for part in (node.state, node.mark) if part)


def _held(node: TreeNode) -> str:
    return ", ".join(node.holders) or (f"{node.lock} requests" if node.lock else "–")


def _text(node: TreeNode | Gone) -> str:
    return f"“{'│'.join(map(spaced, node.block_texts))}”"


def _line(node: TreeNode) -> str:
    """Places in the line to leave, as ``3`` or ``3–5``; empty where the node is held."""
    places = sorted(place for place in node.leaves if place is not None)
    if not places:
        return ""
    return str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"


def _ids(blocks: Sequence[int]) -> str:
    """Block ids, neighbours as a range: ``0–3 7``."""
    parts: list[str] = []
    begin = last = blocks[0]
    for block in [*blocks[1:], None]:
        if block is not None and block == last + 1:
            last = block
            continue
        parts.append(str(begin) if begin == last else f"{begin}–{last}")
        if block is not None:
            begin = last = block
    return " ".join(parts)


def _fit(text: str, room: float) -> str:
    """As much of a text as fits into ``room`` pixels."""
    limit = len(text)
    while limit > 3 and _width(shorten(text, limit)) > room:
        limit = min(limit - 1, max(3, int(limit * room / _width(shorten(text, limit)))))
    return shorten(text, limit)


def _width(text: str) -> float:
    """In bold, and with the signs between blocks and tokens, which many fonts draw wide."""
    return 1.08 * text_width(text) + FONT * 0.45 * sum(text.count(sign) for sign in "│…␣")
