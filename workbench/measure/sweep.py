"""``bench sweep``: the same benchmark at every point of a grid of options, and pictures of what changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import UsageError, WorkbenchError
from workbench.llm import LLM
from workbench.measure import serve
from workbench.measure.load import Load
from workbench.measure.metrics import serving_metrics
from workbench.measure.result import SCHEMA_VERSION

PLOTTED = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_itl_ms")


class Point(NamedTuple):
    options: dict[str, str]
    """What was chosen here, by name, as it was written."""
    load: Load


def run(points: Sequence[Point], say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Serves every point in turn. ``points`` in the result: each with its ``options`` and all keys of ``bench serve``.

    ``config`` and ``workload`` beside them hold what is the same at all points.

    A point that fails on this machine (no memory, every request rejected) has ``error`` instead, and the rest go on.
    The model is loaded again only where an engine option changes.
    """
    told: list[dict[str, Any]] = []
    llm: LLM | None = None
    config = None
    for number, point in enumerate(points, 1):
        name = ", ".join(f"{key}={value}" for key, value in point.options.items())
        say(f"{number} of {len(points)}: {name}")
        try:
            if llm is None or config != point.load.config:
                llm = None  # The pool of the one before must be free before the next is sized.
                llm, config = LLM(point.load.config), point.load.config
            told.append({"options": point.options, **serve.run(point.load, llm)})
        except (WorkbenchError, UsageError, MemoryError) as error:
            told.append({"options": point.options, "error": str(error) or type(error).__name__})
            say(f"  failed: {error}")
    swept: dict[str, list[str]] = {}
    for point in points:
        for key, value in point.options.items():
            values = swept.setdefault(key, [])
            if value not in values:
                values.append(value)
    good = [point for point in told if "error" not in point]
    return {
        "benchmark": "sweep",
        "schema_version": SCHEMA_VERSION,
        "swept": swept,
        **{kind: _common([point[kind] for point in good]) for kind in ("config", "workload")},
        "provenance": good[0]["provenance"] if good else None,
        "points": told,
    }


def plot(result: dict[str, Any], path: str | Path, metrics: Sequence[str] = PLOTTED) -> None:
    """A PNG with one panel a metric: the first option along x, a line with its own marker for each value of the second.

    Points that failed, or where a metric is None, are left out. ``metrics`` as `check_metrics` lets them through.
    """
    from matplotlib.figure import Figure

    names = list(result["swept"])
    good = [point for point in result["points"] if "error" not in point]
    columns = min(len(metrics), 2)
    rows = math.ceil(len(metrics) / columns)
    # An opaque white ground, so that it can be read on a dark page too.
    figure = Figure(figsize=(5 * columns, 3.6 * rows), layout="constrained", facecolor="white")
    labels = result["swept"][names[0]]
    numbers = [_number(label) for label in labels]
    places = list(range(len(labels))) if None in numbers else numbers
    at = dict(zip(labels, places, strict=True))
    for number, metric in enumerate(metrics):
        axes = figure.add_subplot(rows, columns, number + 1)
        lines = result["swept"][names[1]] if len(names) > 1 else [None]
        for line, marker in zip(lines, "os^Dv<>pP*Xhd" * len(lines), strict=False):
            here = [p for p in good if line is None or p["options"][names[1]] == line]
            pairs = sorted((at[p["options"][names[0]]], p[metric]) for p in here if p[metric] is not None)
            label = None if line is None else f"{names[1]}={line}"
            axes.plot([x for x, _ in pairs], [y for _, y in pairs], marker=marker, label=label)
        axes.set_xticks(places, labels)
        axes.set_xlabel(names[0])
        axes.set_ylabel(metric)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend()
    figure.savefig(path, dpi=120, format="png")


def check_metrics(metrics: Sequence[str], percentiles: Sequence[float]) -> None:
    """Raises UsageError for a metric that is no number of a result with these percentiles."""
    empty = serving_metrics([], percentiles=percentiles)
    numbers = [name for name, value in empty.items() if name != "slo" and not isinstance(value, dict)]
    for metric in metrics:
        if metric not in numbers:
            raise UsageError(f"metric {metric!r} cannot be shown; choose from {', '.join(sorted(numbers))}")


def _common(dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = dicts[0] if dicts else {}
    return {name: value for name, value in first.items() if all(one.get(name, ...) == value for one in dicts)}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
