"""What ``workbench bench gpu`` prints at its end: how the sections went, kernels, the engine, goals."""

from __future__ import annotations

from collections import Counter
from typing import Any

from workbench.lab.table import Table

Told = dict[str, Any]
REHEARSAL = "A rehearsal on smallest shapes: no number here is worth anything."
LONGEST = 110
"""Characters of an error in the table; all of it stands in gpu.json."""


def show(result: Told) -> None:
    source, tiny = result["provenance"], result["workload"]["tiny"]
    where = [result["device"] or "unknown device", result["driver"] and f"driver {result['driver']}"]
    if not tiny and source and not source.get("commit"):
        where.append("no commit known: give --commit")
    where += [f"{name} {source[name]}" for name in ("torch", "triton", "python", "commit", "date") if source.get(name)]
    print(", ".join(filter(None, where)))
    tables = [
        _sections(result["sections"]),
        _kernels(result),
        _engine(result),
        Table(["goal", "wanted", "found", "unit", "reached", "published"], [_goal(one) for one in result["goals"]]),
    ]
    for table in tables:
        if table.rows:
            print(f"\n{table!r}")
    if tiny:
        print(f"\n{REHEARSAL}")
    elif not any(goal["unit"] == "TFLOP/s" for goal in result["goals"]):
        print(f"\nNo goals in TFLOP/s are kept for {result['device']}: those of another card do not apply.")


def _sections(sections: list[Told]) -> Table:
    rows = [
        [one["name"], one["status"], f"{one.get('seconds', 0):.0f}", _counted(one["rows"]), _short(one.get("error"))]
        for one in sections
    ]
    return Table(["section", "status", "s", "found", "what went wrong"], rows)


def _counted(rows: list[Told]) -> str:
    outcomes = Counter(row["outcome"] for row in rows if "outcome" in row)
    if outcomes:
        return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    rows = [row for row in rows if "left_out" not in row]
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"


def _short(error: str | None) -> str:
    return "" if error is None else error if len(error) <= LONGEST else f"{error[:LONGEST]}…"


def _kernels(result: Told) -> Table:
    """A line a case: ours, its share of what this card reaches, and the others."""
    cases: dict[str, list[Told]] = {}
    for one in result["sections"]:
        for row in one["rows"]:
            if "contender" in row:
                cases.setdefault(row["case"], []).append(row)
    lines: list[list[str | int]] = []
    for case, rows in cases.items():
        # By the ceiling that bounds it: computing where there is much of it for each byte, else copying.
        computes = rows[0]["flops"] > 100 * rows[0]["bytes"]
        rate, unit, ceiling = ("tflops", "TFLOP/s", "product") if computes else ("gbps", "GB/s", "copy")
        ours, *others = [f"{row[rate]:.4g}" if rate in row else "failed" for row in rows]
        share = rows[0].get(f"percent_of_{ceiling}")
        beside = ", ".join(f"{row['contender']} {found}" for row, found in zip(rows[1:], others, strict=True))
        lines.append([case, ours, unit, "–" if share is None else f"{share:.0f} % of {ceiling}", beside])
    reached = [f"{name.removeprefix('ceiling: ')} {value['value']:.4g} {value['unit']}"
               for name, value in result["values"].items() if name.startswith("ceiling: ")]  # fmt: skip
    caption = f"This device reaches at most: {', '.join(reached)}." if reached else "No ceiling was measured."
    return Table(["kernel", "workbench", "unit", "share", "others"], lines, caption)


def _engine(result: Told) -> Table:
    """A line a model and concurrency: captured steps beside eager ones."""
    runs: dict[tuple[str, int], dict[bool, Told]] = {}
    for one in result["sections"]:
        for row in one["rows"]:
            if "concurrency" in row:
                runs.setdefault((row["model"], row["concurrency"]), {})[row["graphs"]] = row
    lines: list[list[str | int]] = []
    for (model, concurrency), found in runs.items():
        graphs, eager = found.get(True), found.get(False)
        lines.append([
            model, concurrency,
            *(f"{row['output_throughput']:.0f}" if row else "–" for row in (graphs, eager)),
            *(f"{1e3 * row['step_seconds']:.2f}" if row else "–" for row in (graphs, eager)),
            f"{100 * (1 - graphs['forward_share']):.1f} %" if graphs else "–",
        ])  # fmt: skip
    head = ["model", "requests", "tok/s", "tok/s, eager", "step ms", "step ms, eager", "step outside the model"]
    return Table(head, lines, "Decode steps are captured (CUDA graphs) unless eager; tok/s with the prompts' time.")


def _goal(goal: Told) -> list[str]:
    found = "not measured" if goal["found"] is None else f"{goal['found']:.4g}"
    reached = {None: "–", True: "yes", False: "no"}[goal["reached"]]
    return [goal["name"], goal["wanted"], found, goal["unit"], reached, goal["beside"]]
