"""Small notebooks made for a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from workbench.lab import cells

KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}


def made_up(
    folder: Path,
    sources: Mapping[str, str],
    tags: Mapping[str, Sequence[str]] | None = None,
    wishes: Mapping[str, Any] | None = None,
    cell_wishes: Mapping[str, Mapping[str, Any]] | None = None,
) -> cells.NotebookFile:
    """Writes ``99_made_up.ipynb`` of code cells ``{id: source}`` and reads it; wishes are ``metadata.workbench``."""
    made = []
    for name, source in sources.items():
        cell = nbformat.v4.new_code_cell(source, id=name)
        cell.metadata["tags"] = list((tags or {}).get(name, ()))
        cell.metadata["workbench"] = dict((cell_wishes or {}).get(name, {}))
        made.append(cell)
    notebook = nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": KERNEL, "workbench": dict(wishes or {})})
    path = folder / "99_made_up.ipynb"
    nbformat.write(notebook, path)
    return cells.read(path)
