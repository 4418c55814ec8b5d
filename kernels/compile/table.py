"""The agreed figures of every configuration, one file for each Triton version: ``tables/3.9.0.json``.

    {
     "matmul.bf16_128": {
      "sm_90": {"registers": 168, "warps": 8, "shared": 98304, "matrix": {"HGMMA": 8}, "copies": {"LDGSTS": 16}},
      …

One line a chip, so that a change is one line of a diff. ``python -m kernels.inspect --update`` writes it. A line with
local memory needs a ``"reason"``, written by hand and kept by later updates for as long as there is local memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kernels.compile.made import Made

FOLDER = Path(__file__).with_name("tables")
Row = dict[str, Any]
Table = dict[str, dict[str, Row]]


def path_for(version: str) -> Path:
    return FOLDER / f"{version}.json"


def versions() -> list[str]:
    """Triton versions that have a table."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(path: Path) -> Table:
    """Raises FileNotFoundError, and ValueError for what is no table or cannot be read."""
    try:
        table: Table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} is no table: {error}") from error
    parts = [table, *(table.values() if isinstance(table, dict) else ())]
    parts += [row for rows in parts[1:] if isinstance(rows, dict) for row in rows.values()]
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path.name} is no table: it must map names to chips to figures")
    return table


def save(path: Path, table: Mapping[str, Mapping[str, Row]]) -> None:
    """Names in alphabetical order, chips in the order given."""
    parts = []
    for name in sorted(table):
        rows = [f"  {json.dumps(arch)}: {json.dumps(row, ensure_ascii=False)}" for arch, row in table[name].items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def reason(row: Row | None) -> str:
    """Why this configuration may use local memory; empty if nobody said."""
    return str(row.get("reason", "")).strip() if row else ""


def row_of(made: Made, before: Row | None) -> Row:
    """The line for new figures. A reason stays only where there still is local memory."""
    row: Row = made.brief()
    if made.uses_local() and (why := reason(before)):
        row["reason"] = why
    return row


def differences(row: Row, made: Made) -> list[str]:
    """``registers 138 → 191`` for each figure that is not the table's."""
    agreed = {name: value for name, value in row.items() if name != "reason"}
    now = made.brief()
    names = [*agreed, *(name for name in now if name not in agreed)]
    return [
        f"{name} {_words(agreed.get(name))} → {_words(now.get(name))}"
        for name in names
        if agreed.get(name) != now.get(name)
    ]


def updated(table: Table, made: Iterable[tuple[str, str, Made]], keep: Collection[tuple[str, str]] | None) -> Table:
    """With these (name, chip, figures). ``keep``: what is still launched and where, the rest goes; None: all stays."""
    new: Table = {}
    for name, rows in table.items():
        if kept := {arch: row for arch, row in rows.items() if keep is None or (name, arch) in keep}:
            new[name] = kept
    for name, arch, figures in made:
        rows = new.setdefault(name, {})
        rows[arch] = row_of(figures, rows.get(arch))
    return {name: dict(sorted(rows.items(), key=lambda pair: int(pair[0][3:]))) for name, rows in new.items()}


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{count} × {name}" for name, count in value.items())
    return str(value)
