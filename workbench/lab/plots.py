"""Plots that read in a light and in a dark theme, and without their colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = (("#0072b2", "o", "-"), ("#d55e00", "s", "--"), ("#009e73", "^", ":"), ("#000000", "D", "-."))
"""Colours of Okabe and Ito, each with a marker and a dash of its own."""


def line_plot(
    series: Mapping[str, Mapping[float, float]], x_label: str, y_label: str, title: str = "", log_x: bool = False
) -> Figure:
    """Lines over common axes: name → {x: y}. Labels say their units. At most as many lines as there are styles.

    The figure brings its own white ground. Labels keep to Latin letters: matplotlib's own fonts have no Hangul.
    """
    if not series or len(series) > len(_STYLES):
        raise UsageError(f"line_plot draws 1 to {len(_STYLES)} lines, not {len(series)}")
    from matplotlib import pyplot, style

    with style.context("default"):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), facecolor="white", layout="constrained")
        for (name, points), (colour, marker, dash) in zip(series.items(), _STYLES, strict=False):
            axes.plot(list(points), list(points.values()), color=colour, marker=marker, linestyle=dash, label=name)
        if log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(title)
        axes.grid(True, alpha=0.3)
        axes.legend()
        # Closed, so that a notebook shows it once, where it is returned, and not again at the cell's end.
        pyplot.close(figure)
    return figure


_HATCHES = (
    ("#0072b2", ""),
    ("#e69f00", "//"),
    ("#f0e442", ".."),
    ("#cc79a7", "xx"),
    ("#d9d9d9", "\\\\"),
    ("#ffffff", ""),
)
"""Of the parts of a bar, in order; the first is dark, with white numbers."""
_LEAST_NAMED = 4.0


def stacked_bars(rows: Mapping[str, Mapping[str, float]], x_label: str, title: str = "") -> Figure:
    """Lying bars, one a row: name → {part: per cent}. Parts of at least 4 per cent show their number.

    All rows have the same parts, in one order, each with a hatch of its own. Raises UsageError for others, and for more
    parts than there are styles.
    """
    names = [list(parts) for parts in rows.values()]
    if not names or len(names[0]) > len(_HATCHES) or any(one != names[0] for one in names):
        raise UsageError(f"stacked_bars draws rows that all have the same parts, 1 to {len(_HATCHES)}, not {names}")
    from matplotlib import pyplot, style

    with style.context("default"):
        figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.5 * len(rows)), facecolor="white", layout="constrained")
        begin = [0.0] * len(rows)
        for part, (colour, hatch) in zip(names[0], _HATCHES, strict=False):
            widths = [parts[part] for parts in rows.values()]
            axes.barh(
                list(rows), widths, left=begin, color=colour, hatch=hatch, label=part, edgecolor="#333333", lw=0.6
            )
            for row, (start, width) in enumerate(zip(begin, widths, strict=True)):
                if width >= _LEAST_NAMED:
                    ground = None if colour == _HATCHES[0][0] else {"facecolor": "white", "edgecolor": "none", "pad": 1}
                    axes.text(
                        start + width / 2, row, f"{width:.0f}", ha="center", va="center", fontsize=9, bbox=ground,
                        color="white" if ground is None else "black",
                    )  # fmt: skip
            begin = [start + width for start, width in zip(begin, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlim(0, max(begin))
        axes.set_xlabel(x_label)
        axes.set_title(title, fontsize=11)
        figure.legend(loc="outside lower center", ncols=len(names[0]), frameon=False, fontsize=9)
        pyplot.close(figure)
    return figure


def tick_plot(rows: Mapping[str, Sequence[float]], x_label: str, title: str = "") -> Figure:
    """One line of ticks for each name, from top to bottom, over one axis: where the numbers of each lie.

    Raises UsageError without rows.
    """
    if not rows:
        raise UsageError("tick_plot draws at least 1 row of ticks")
    from matplotlib import pyplot, style

    with style.context("default"):
        size = (7, 0.6 + 0.5 * len(rows))
        figure, axes = pyplot.subplots(figsize=size, facecolor="white", layout="constrained")
        places = list(range(len(rows), 0, -1))
        axes.eventplot(list(rows.values()), lineoffsets=places, linelengths=0.7, linewidths=0.7, colors="#0072b2")
        axes.set_yticks(places, list(rows))
        axes.set_xlabel(x_label)
        axes.set_title(title)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        pyplot.close(figure)
    return figure
