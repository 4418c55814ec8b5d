"""What the compiler made of kernels on three chips, as a table: from the agreed figures, nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

from kernels.compile import table
from kernels.compile.chips import CHIPS, occupancy
from workbench.errors import UsageError
from workbench.lab.table import Cell, Table


def agreed_figures(pattern: str, archs: Sequence[str] = tuple(CHIPS)) -> list[dict[str, Any]]:
    """Records like those of `kernels.inspect`, for names such as ``flash_attention.*-d128-*``, chip by chip.

    From the table of the Triton that is installed, else of the newest that has one. Raises UsageError where none fits.
    """
    known = table.versions()
    wanted = version("triton")
    rows = table.load(table.path_for(wanted if wanted in known else known[-1]))
    found = [
        {"name": name, "arch": arch, **row, "occupancy": asdict(_held(row, arch))}
        for arch in archs
        for name, chips in rows.items()
        if fnmatchcase(name, pattern)
        for row in [chips.get(arch)]
        if row is not None
    ]
    if not found:
        raise UsageError(f"no kernel in the table is called {pattern!r} on {', '.join(archs)}")
    return found


def made_table(records: Sequence[Mapping[str, Any]], caption: str = "") -> Table:
    """One column a record of `agreed_figures`, or of `kernels.inspect.inspect`. Registers and local memory are those of
    a thread; warps held, of those that an SM can hold."""
    columns = [_column(record) for record in records]
    rows: list[list[Cell | str | int]] = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return Table(["", *(f"{one['arch']} ({CHIPS[one['arch']].example})" for one in records)], rows, caption)


def _column(record: Mapping[str, Any]) -> dict[str, Cell | str | int]:
    held, local = record["occupancy"], record.get("local_bytes", 0)
    return {
        "kernel": record["name"].split(".")[-1],
        "warps of a program": record["warps"],
        "registers": record["registers"],
        "spilled to local memory": Cell(f"{local} B", "alert") if local else "nothing",
        "shared memory": f"{record['shared'] / 1024:.0f} KiB",
        "programs an SM holds": held["blocks"],
        "limited by": ", ".join(held["limited_by"]),
        "warps held": f"{held['warps']} of {CHIPS[record['arch']].warps_per_sm}",
        "matrix instructions": _counts(record.get("matrix", {})),
        "asynchronous copies": _counts(record.get("copies", {})),
    }


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{count} {name}" for name, count in counts.items()) or "–"


def _held(row: Mapping[str, Any], arch: str) -> Any:
    columns = row.get("tensor_columns", 0)
    return occupancy(
        CHIPS[arch], registers=row["registers"], warps=row["warps"], shared=row["shared"], tensor_columns=columns
    )
