"""Rows from a section's process to its parent: one JSON object a line, on disk before the next begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Report:
    """``begun``: the items that an earlier process of this section began; the one it died of is among them."""

    def __init__(self, file: Path, begun: frozenset[str] = frozenset()) -> None:
        self._file = file.open("a", encoding="utf-8")
        self._begun = begun

    def begin(self, item: str) -> bool:
        """Says what is coming, so that a crash is blamed on it. False: it was begun before; leave it out."""
        if item in self._begun:
            return False
        self._write({"begin": item})
        return True

    def row(self, **row: Any) -> None:
        self._write({"row": row})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()


def read(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows and what was begun. A last line that is not whole is left out."""
    rows, begun = [], []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "begin" in found:
            begun.append(found["begin"])
        else:
            rows.append(found["row"])
    return rows, begun


def why(error: BaseException) -> str:
    """An error in one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
