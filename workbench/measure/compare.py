"""A result beside an earlier one: ratios, and what else was not the same. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.errors import UsageError

RATES = ("request_throughput", "output_throughput", "total_token_throughput", "request_goodput")
"""More is better; of all times less is."""
KINDS = ("config", "workload", "provenance")
NOT_COMPARED = ("date",)


def read_baseline(path: str | Path) -> dict[str, Any]:
    """A result that a benchmark wrote with ``--output``. Raises UsageError for a file of another kind."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no benchmark's result: {error}") from None
    if not isinstance(found, dict) or "schema_version" not in found:
        raise UsageError(f"{path} is no benchmark's result: write one with --output FILE")
    return found


def compare(result: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """``ratios`` {name: now ÷ then} of rates and times, and ``differs`` {config, workload, provenance}.

    What differs stands as ``{name: [then, now]}``: where config and workload are the same, the ratios are about the
    code and the machine alone. Of a sweep, each point is compared with the point of the same options. A ratio is None
    where one side is None or what it is divided by is 0. Raises UsageError for results that cannot be compared.
    """
    for name in ("schema_version", "benchmark"):
        # Results were written before they told their benchmark.
        if name in baseline and baseline[name] != result[name]:
            raise UsageError(f"the baseline has {name} {baseline[name]!r} and this result {result[name]!r}: no ratio")
    if result["benchmark"] == "sweep":
        if "points" not in baseline:
            raise UsageError("the baseline is no sweep: it has no points")
        then = [(point["options"], point) for point in baseline["points"]]
        return {"points": [_point(point, then) for point in result["points"]]}
    # Through JSON, as the baseline went: tuples are lists there.
    now = json.loads(json.dumps(result))
    return {
        "ratios": {name: _ratio(now[name], baseline[name]) for name in _compared(now) if name in baseline},
        "differs": {kind: _differs(now.get(kind) or {}, baseline.get(kind) or {}) for kind in KINDS},
    }


def _point(point: dict[str, Any], baseline: list[tuple[dict[str, str], dict[str, Any]]]) -> dict[str, Any]:
    then = next((one for options, one in baseline if options == point["options"]), None)
    if then is None or "error" in then or "error" in point:
        why = "the baseline has no such point" if then is None else "it failed, then or now"
        return {"options": point["options"], "missing": why}
    return {"options": point["options"], **compare(point, then)}


def _compared(result: dict[str, Any]) -> list[str]:
    names = [name for name in result if name in RATES or name.endswith(("_ms", "_latency"))]
    return [name for name in names if not name.startswith("std_")]


def _ratio(now: float | None, then: float | None) -> float | None:
    return None if now is None or not then else now / then


def _differs(now: dict[str, Any], then: dict[str, Any]) -> dict[str, list[Any]]:
    names = [name for name in dict.fromkeys([*then, *now]) if name not in NOT_COMPARED]
    return {name: [then.get(name), now.get(name)] for name in names if then.get(name) != now.get(name)}
