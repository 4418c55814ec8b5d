"""Figures as text: one line a configuration and chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("kernel", "chip", "warps", "regs", "local", "shared KiB", "blocks/SM", "occupancy", "matrix", "copies", "loads")
_LEFT = (0, 1, 7, 8, 9, 10)


def text(records: Sequence[Mapping[str, Any]]) -> str:
    """Of the records of `kernels.inspect`; a configuration that does not compile has one line that says so."""
    lines: list[tuple[str, ...]] = [HEAD, *(_line(record) for record in records)]
    columns = len(HEAD)
    widths = [max(len(line[column]) for line in lines if len(line) == columns) for column in range(columns)]
    return "\n".join(_joined(line, widths) for line in lines)


def _line(record: Mapping[str, Any]) -> tuple[str, ...]:
    if "registers" not in record:
        return record["name"], record["arch"], "does not compile"
    held = record["occupancy"]
    local = record.get("local_bytes", 0)
    return (
        record["name"],
        record["arch"],
        str(record["warps"]),
        str(record["registers"]),
        f"{local} B" if local else "–",
        f"{record['shared'] / 1024:.1f}",
        str(held["blocks"]),
        f"{held['share']:.0%} ({', '.join(held['limited_by'])})",
        _counts(record.get("matrix", {})),
        _counts(record.get("copies", {})),
        _counts(record.get("loads", {})),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.items()) or "–"


def _joined(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column in _LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=False))
    ]
    return "  ".join(cells).rstrip()
