"""What is kept of a run: rates beside this card's ceilings, values by name. No torch."""

from __future__ import annotations

from typing import Any, NamedTuple

OURS = "workbench"
Told = dict[str, Any]


class Value(NamedTuple):
    value: float
    unit: str
    spread: list[float] | None


def rows_of(sections: list[Told], key: str) -> list[Told]:
    """Rows of all sections that have this key and no error."""
    return [row for one in sections for row in one["rows"] if key in row and not row.get("error")]


def ceilings(sections: list[Told]) -> dict[str, float]:
    """The best measured rate of each ceiling."""
    found: dict[str, float] = {}
    for row in rows_of(sections, "ceiling"):
        found[row["ceiling"]] = max(found.get(row["ceiling"], 0.0), row["rate"])
    return found


def with_rates(sections: list[Told]) -> list[Told]:
    """The sections, timed rows with ``tflops``, ``gbps``, and per cent of the ceilings; those of others with
    ``times_ours``, the seconds by ours of the same case."""
    best = ceilings(sections)
    ours = {row["case"]: row["seconds"] for row in rows_of(sections, "contender") if row["contender"] == OURS}
    return [one | {"rows": [_rated(row, best, ours) for row in one["rows"]]} for one in sections]


def _rated(row: Told, best: dict[str, float], ours: dict[str, float]) -> Told:
    if "contender" not in row or row.get("error"):
        return row
    made = dict(row)
    if row["contender"] != OURS and row["case"] in ours:
        made["times_ours"] = row["seconds"] / ours[row["case"]]
    for work, ceiling, rate, size in (("flops", "product", "tflops", 1e12), ("bytes", "copy", "gbps", 1e9)):
        if row[work]:
            made[rate] = row[work] / row["seconds"] / size
            if ceiling in best:
                made[f"percent_of_{ceiling}"] = 100 * row[work] / row["seconds"] / best[ceiling]
    return made


def values(sections: list[Told]) -> dict[str, Value]:
    """By name, what other places may quote."""
    found: dict[str, Value] = {}
    for name, rate in ceilings(sections).items():
        size, unit = (1e9, "GB/s") if name == "copy" else (1e12, "TFLOP/s")
        found[f"ceiling: {name}"] = Value(rate / size, unit, None)
    for row in rows_of(with_rates(sections), "contender"):
        for work, size, unit in (("flops", 1e12, "TFLOP/s"), ("bytes", 1e9, "GB/s")):
            if row[work] and (work == "bytes" or row["flops"] > 100 * row["bytes"]):
                low, high = row[work] / row["high"] / size, row[work] / row["low"] / size
                name = f"{row['case']}: {row['contender']}"
                found.setdefault(name, Value(row[work] / row["seconds"] / size, unit, [low, high]))
        if "times_ours" in row:
            found[f"{row['case']}: {row['contender']} by {OURS}"] = Value(row["times_ours"], "times as long", None)
    for row in rows_of(sections, "concurrency"):
        name = f"{row['model']} × {row['concurrency']}, {'graphs' if row['graphs'] else 'eager'}"
        found[name] = Value(row["output_throughput"], "tok/s", None)
        found[f"{name}: step"] = Value(1e3 * row["step_seconds"], "ms", None)
        found[f"{name}: outside the model"] = Value(100 * (1 - row["forward_share"]), "% of the step", None)
    return found
