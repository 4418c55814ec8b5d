"""The comparison as a picture: a panel for each workload, a bar for each system, those of equal precision together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLASSES = ("fp32", "16-bit", "8-bit", "4-bit")
COLOURS = {"fp32": "#0072b2", "16-bit": "#56b4e9", "8-bit": "#009e73", "4-bit": "#e69f00"}
"""Okabe and Ito's: told apart by colour-blind readers. The class also stands beside its bars."""
GAP = 0.6
"""Between two classes, in bars."""


def plot(result: dict[str, Any], path: str | Path) -> None:
    """A PNG. Bars are medians, the thin lines on them go from the lowest to the highest round, ours are hatched, and a
    short black line is the limit that the measured bandwidth or matrix rate sets."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = {name: bars for name, bars in result["results"].items() if bars}
    classes = [c for c in CLASSES if any(one.get("precision") == c for one in result["systems"].values())]
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    tallest = max(len(bars) for bars in shown.values()) + GAP * len(classes)
    # An opaque white ground, so that it can be read on a dark page too.
    size = (6.4 * columns, (0.34 * tallest + 1.0) * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    for number, (name, bars) in enumerate(shown.items(), 1):
        _panel(figure.add_subplot(rows, columns, number), name, bars, result)
    legend: list[Any] = [Patch(facecolor=COLOURS[c], label=c) for c in classes]
    legend.append(Patch(facecolor="white", edgecolor="black", hatch="///", label="this engine"))
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    figure.savefig(path, dpi=120, format="png")


def _panel(axes: Any, name: str, bars: dict[str, Any], result: dict[str, Any]) -> None:
    job, systems = result["workload"][name], result["systems"]
    places: list[float] = []
    order: list[str] = []
    at = 0.0
    for precision in CLASSES:
        members = [system for system in bars if systems[system]["precision"] == precision]
        # The best first, whichever direction is better.
        members.sort(key=lambda system: bars[system]["median"], reverse=job["more_is_better"])
        for system in members:
            places.append(at)
            order.append(system)
            at += 1
        at += GAP if members else 0
    limits = [bars[system]["of_limit"]["limit"] for system in order if bars[system]["of_limit"]]
    most = max([*(bars[system]["high"] for system in order), *limits])
    for place, system in zip(places, order, strict=True):
        found, ours = bars[system], systems[system]["ours"]
        median, low, high = found["median"], found["low"], found["high"]
        colour = COLOURS[systems[system]["precision"]]
        axes.barh(place, median, 0.78, color=colour, edgecolor="black" if ours else colour,
                  hatch="///" if ours else None, linewidth=0.8)  # fmt: skip
        axes.errorbar(median, place, xerr=[[median - low], [high - median]], color="black", capsize=2, linewidth=0.8)
        limit = found["of_limit"]
        reach = high
        if limit:
            axes.plot([limit["limit"]] * 2, [place - 0.39, place + 0.39], color="black", linewidth=2)
            # A number that would lie on the mark stands behind it.
            reach = limit["limit"] if high < limit["limit"] < high + 0.17 * most else high
        axes.text(reach + 0.015 * most, place, f"{median:,.3g}" if median < 100 else f"{median:,.0f}",
                  va="center", fontsize=8, fontweight="bold" if ours else "normal")  # fmt: skip
    axes.set_yticks(places, order, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * most)
    direction = "more is better" if job["more_is_better"] else "less is better"
    axes.set_title(f"({name}) {job['title']}", fontsize=9)
    axes.set_xlabel(f"{job['unit']} ({direction})", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
