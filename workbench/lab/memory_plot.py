"""The KV memory map as a figure: for pages that show no SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.engine.trace import StepTrace
from workbench.lab.pool_history import CACHED, FREE, SHARED, USED, PoolHistory
from workbench.lab.snapshot import PoolSnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWNERS = ("#56b4e9", "#e69f00", "#4dbb98", "#d68fb5")
"""Hues of Okabe and Ito, about equally light: darker than what is cached and lighter than what is shared."""
_SHADES = {USED: _OWNERS[0], SHARED: "#30304a", CACHED: "#dddddd", FREE: "#ffffff"}
_HATCH = {USED: "", SHARED: "", CACHED: "..", FREE: ""}


def memory_map(traces: Sequence[StepTrace], snapshots: Sequence[PoolSnapshot], title: str = "") -> Figure:
    """Above, a row a block and a column a step; below, how many blocks were in each state. × marks what was given up.

    The states differ in lightness too: free is white, cached light grey, in use coloured (neighbouring requests in
    different hues), shared dark. Raises UsageError as `PoolHistory`.
    """
    history = PoolHistory(traces, snapshots)
    from matplotlib import pyplot, style
    from matplotlib.colors import to_rgb
    from matplotlib.ticker import MaxNLocator

    number = {owner: at for at, owner in enumerate(history.owners)}
    first, count = history.traces[0].step, len(history.columns)
    edges = (first - 0.5, first + count - 0.5, history.num_rows - 0.5, -0.5)
    with style.context("default"):
        figure, (top, low) = pyplot.subplots(
            2, 1, figsize=(8, 5.4), height_ratios=(3, 1), sharex=True, facecolor="white", layout="constrained"
        )
        image = [
            [
                to_rgb(_OWNERS[number[square.owner] % 4] if square.state == USED else _SHADES[square.state])
                for square in (column[row] for column in history.columns)
            ]
            for row in range(history.num_rows)
        ]
        top.imshow(image, aspect="auto", interpolation="nearest", extent=edges)
        crosses = [(first + at, row) for at, gone in enumerate(history.evicted) for row in gone]
        if crosses:
            size = max(6.0, min(40.0, 4000 / max(count, history.num_rows)))
            top.scatter(*zip(*crosses, strict=True), marker="x", s=size, color="black", linewidths=1)
        ticks = list(range(0, history.num_rows, max(1, -(-history.num_rows // 8))))
        top.set_yticks(ticks, [history.row_name(row) for row in ticks])
        top.set_ylabel("block" if history.group == 1 else f"blocks, {history.group} a row")
        top.set_title(title or "KV blocks after each step")
        states = (SHARED, USED, CACHED, FREE)
        # Each step fills its column: from half a step before it to half a step after.
        areas = [[counts[state] for counts in (*history.counts, history.counts[-1])] for state in states]
        low.stackplot(
            [first - 0.5 + at for at in range(count + 1)],
            *areas,
            step="post",
            labels=states,
            colors=[_SHADES[state] for state in states],
            hatch=[_HATCH[state] for state in states],
            edgecolor="#555555",
            linewidth=0.5,
        )
        low.set_ylim(0, history.num_blocks)
        low.set_xlim(edges[:2])
        low.set_ylabel("blocks")
        low.set_xlabel("step")
        low.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, names = low.get_legend_handles_labels()
        if crosses:
            handles.append(top.collections[-1])
            names.append("given up")
        figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
        pyplot.close(figure)
    return figure
