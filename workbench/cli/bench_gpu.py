"""``workbench bench gpu``: every measurement that needs a GPU, in one run of at most eight minutes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError, WorkbenchError
from workbench.files import write_atomically
from workbench.measure.gpu.report import why
from workbench.measure.gpu.sections import SECTIONS

if TYPE_CHECKING:
    from workbench.measure.gpu.scale import Scale

SCHEMA_VERSION = 1
GPU = "gpu.json"
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
                       help=f"these only, after `device`: {', '.join(one.name for one in SECTIONS[1:])}")  # fmt: skip
    group.add_argument("--commit", metavar="HASH", help="of this code, where it is no git checkout")


def gpu(args: argparse.Namespace) -> int:
    from workbench.cli.bench_gpu_tables import show
    from workbench.measure.gpu.drive import drive
    from workbench.measure.gpu.scale import Scale

    if args.device == "cpu" and not args.tiny:
        raise UsageError("--device cpu interprets kernels, a million times slower than a GPU: add --tiny to rehearse")
    known = [one.name for one in SECTIONS]
    if unknown := [name for name in args.only if name not in known]:
        raise UsageError(f"--only {unknown[0]}: the sections are {', '.join(known)}")
    kept = _Kept(Path(args.out), Scale(args.device, args.tiny, args.quick, _notebooks()), args.commit)
    only = (SECTIONS[0].name, *args.only) if args.only else ()  # a number without a device is none
    sections = drive(kept.scale, kept.told, _say, only)
    if args.json:
        print(json.dumps(kept.result, indent=1))
    else:
        try:
            show(kept.result)
        except Exception as error:  # all is in gpu.json; a table more or less is no reason to lose the exit code
            _say(f"the tables cannot be shown: {why(error)}")
        print(f"\n{kept.trouble or f'All of it: {kept.out}/gpu.json; recorded_*.json go into notebooks/recorded/.'}")
    return int(bool(kept.trouble) or any(one["status"] not in ("ok", "left out") for one in sections))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Kept:
    """What is known so far, on disk at every moment. Raises WorkbenchError where ``out`` cannot be written to."""

    def __init__(self, out: Path, scale: Scale, commit: str | None) -> None:
        self.out, self.scale, self.commit = out, scale, commit
        self.trouble = ""
        """What could not be written last."""
        self.result = _result([], scale, commit)
        try:
            write_atomically(out / GPU, json.dumps(self.result))
        except OSError as error:
            raise WorkbenchError(
                f"--out {str(out)!r} cannot be written to: {error.strerror}; name another folder"
            ) from None

    def told(self, sections: list[dict[str, Any]]) -> None:
        """Never raises: what was measured so far matters more than why it could not be written down this time."""
        try:
            self.result = _result(sections, self.scale, self.commit)
            trouble = ""
        except Exception as error:
            self.result = {**self.result, "sections": sections}
            trouble = f"no rates and goals: {why(error)}"
        for write in (self._whole, self._recorded):
            try:
                write()
            except Exception as error:
                trouble = trouble or f"{self.out} cannot be written to: {why(error)}"
        if trouble and trouble != self.trouble:
            _say(trouble)
        self.trouble = trouble

    def _whole(self) -> None:
        write_atomically(self.out / GPU, json.dumps(self.result, indent=1, default=str) + "\n")

    def _recorded(self) -> None:
        """Recorded runs as `workbench.lab.recorded` reads them, to be put into ``notebooks/recorded/``."""
        from workbench.lab.recorded import write_run

        if not self.result["provenance"]:
            return
        kind = "a rehearsal, worth nothing" if self.scale.tiny else "random weights"
        runs = {"gpu": (self.result["values"], f"workbench bench gpu, {kind}")}
        # A notebook that failed has measured what it has measured.
        for row in [row for one in self.result["sections"] for row in one["rows"] if row.get("values")]:
            workload = f"{Path(row['notebook']).stem}, tier {row['tier']}, {kind}"
            runs[row["notebook"][:2]] = (row["values"], workload)
        where = {key: self.result[key] for key in ("device", "driver", "provenance")}
        for notebook, (values, workload) in runs.items():
            if values:
                file = self.out / f"recorded_{notebook}.json"
                write_run(file, notebook=notebook, workload=workload, values=values, **where)


def _notebooks() -> tuple[str, ...]:
    """Files of the written notebooks that measure kernels."""
    from workbench.lab import cells, course

    found = [cells.folder() / f"{one.name}.ipynb" for one in course.notebooks() if one.triton]
    return tuple(str(path) for path in found if path.exists())[:MOST_NOTEBOOKS]


def _result(sections: list[dict[str, Any]], scale: Scale, commit: str | None) -> dict[str, Any]:
    from workbench.measure.gpu import summary
    from workbench.measure.gpu.goals import goals

    nowhere = {"provenance": {}, "device": None, "driver": None}
    source = next(iter(summary.rows_of(sections, "provenance")), nowhere)
    return {
        "benchmark": "gpu",
        "schema_version": SCHEMA_VERSION,
        "device": source["device"],
        "driver": source["driver"],
        "provenance": source["provenance"] and source["provenance"] | ({"commit": commit} if commit else {}),
        "workload": scale.to_dict(),
        "goals": [] if scale.tiny else goals(sections, source["device"]),
        "values": {name: value._asdict() for name, value in summary.values(sections).items()},
        "sections": summary.with_rates(sections),
    }
