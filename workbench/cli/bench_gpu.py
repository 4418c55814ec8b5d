"""``workbench bench gpu``: every measurement that needs a GPU, in one run of at most eight minutes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from workbench.errors import UsageError, WorkbenchError

SCHEMA_VERSION = 1
MOST_NOTEBOOKS = 5
"""So that no more than eight files are written."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    group.add_argument("--out", required=True, metavar="DIR", help="folder for gpu.json and the recorded runs")
    group.add_argument("--quick", action="store_true", help="fewer shapes, no large model, about three minutes")
    group.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                       help="cpu interprets the kernels, for a rehearsal (default: cuda)")  # fmt: skip
    group.add_argument("--tiny", action="store_true", help="a rehearsal: smallest shapes, no number is worth anything")
    group.add_argument("--only", type=lambda text: tuple(text.split(",")), default=(), metavar="NAME,NAME",
                       help="these sections only")  # fmt: skip
    group.add_argument("--commit", metavar="HASH", help="of this code, where it is no git checkout")


def gpu(args: argparse.Namespace) -> int:
    from workbench.measure.gpu.drive import drive
    from workbench.measure.gpu.scale import Scale
    from workbench.measure.gpu.sections import SECTIONS

    if args.device == "cpu" and not args.tiny:
        raise UsageError("--device cpu interprets kernels, a million times slower than a GPU: add --tiny to rehearse")
    known = [one.name for one in SECTIONS]
    if unknown := [name for name in args.only if name not in known]:
        raise UsageError(f"--only {unknown[0]}: the sections are {', '.join(known)}")
    out = _folder(args.out)
    scale = Scale(args.device, args.tiny, args.quick, _notebooks())
    result: dict[str, Any] = {}

    def told(sections: list[dict[str, Any]]) -> None:
        result.clear()
        result.update(_result(sections, scale.to_dict(), args.commit))
        _write(out / "gpu.json", result)

    sections = drive(scale, told, lambda line: print(line, file=sys.stderr, flush=True), args.only)
    _record(out, result)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        _show(result)
    return int(any(one["status"] not in ("ok", "left out") for one in sections))


def _folder(name: str) -> Path:
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkbenchError(f"--out {name!r} cannot be made: {error.strerror}; name another folder") from None
    return out


def _notebooks() -> tuple[str, ...]:
    """Files of the written notebooks that measure kernels."""
    from workbench.lab import cells, course

    found = [cells.folder() / f"{one.name}.ipynb" for one in course.notebooks() if one.triton]
    return tuple(str(path) for path in found if path.exists())[:MOST_NOTEBOOKS]


def _result(sections: list[dict[str, Any]], scale: dict[str, Any], commit: str | None) -> dict[str, Any]:
    from workbench.measure.gpu import summary

    source = next(iter(summary.rows_of(sections, "provenance")), {"provenance": {}, "device": None, "driver": None})
    provenance = source["provenance"] | ({"commit": commit} if commit else {})
    return {
        "benchmark": "gpu",
        "schema_version": SCHEMA_VERSION,
        "device": source["device"],
        "driver": source["driver"],
        "provenance": provenance,
        "workload": scale,
        "goals": summary.goals(sections),
        "values": {name: value._asdict() for name, value in summary.values(sections).items()},
        "sections": summary.with_rates(sections),
    }


def _write(file: Path, result: dict[str, Any]) -> None:
    from workbench.files import write_atomically

    write_atomically(file, json.dumps(result, indent=1) + "\n")


def _record(out: Path, result: dict[str, Any]) -> None:
    """Recorded runs as `workbench.lab.recorded` reads them, to be put into ``notebooks/recorded/``."""
    from workbench.lab.recorded import write_run
    from workbench.measure.gpu.summary import rows_of

    kind = "a rehearsal, worth nothing" if result["workload"]["tiny"] else "random weights"
    runs = {"gpu": (result["values"], f"workbench bench gpu, {kind}")}
    # A notebook that failed has measured what it has measured.
    for row in [row for one in result["sections"] for row in one["rows"] if row.get("values") and "notebook" in row]:
        runs[Path(row["notebook"]).name[:2]] = (
            row["values"],
            f"{Path(row['notebook']).stem}, tier {row['tier']}, {kind}",
        )
    if not rows_of(result["sections"], "provenance"):
        return
    where = {key: result[key] for key in ("device", "driver", "provenance")}
    for notebook, (values, workload) in runs.items():
        if values:
            write_run(out / f"recorded_{notebook}.json", notebook=notebook, workload=workload, values=values, **where)


def _show(result: dict[str, Any]) -> None:
    from workbench.lab.table import Table

    rows: list[list[Any]] = [
        [one["name"], one["status"], f"{one.get('seconds', 0):.0f}", len(one["rows"]), one.get("error") or ""]
        for one in result["sections"]
    ]
    print(repr(Table(["section", "status", "s", "rows", "what went wrong"], rows)))
    goals = [
        [goal["name"], goal["wanted"], "–" if goal["found"] is None else f"{goal['found']:.1f}",
         "yes" if goal["reached"] else "no"]
        for goal in result["goals"]
    ]  # fmt: skip
    print(repr(Table(["goal", "wanted", "found", "reached"], goals)))
