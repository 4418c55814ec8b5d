"""How the notebooks run as tests: `pytest --nbval-lax --nbval-current-env -p no:xdist notebooks/`.

nbval sends every cell to one kernel for each notebook. What it lacks is added here: the smallest workload and graded
exercises unless the caller chose otherwise, GPU-only notebooks and cells skipped with a reason, a time limit for each
notebook, and no avalanche of failures after the first one. A notebook's wishes stand in its metadata, under
``workbench``: ``{"device": "cuda"}``, ``{"cell_timeout_s": 60}``; a cell may ask for a device in the same way.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from workbench.lab import cells

os.environ.setdefault("WORKBENCH_TIER", "tiny")
os.environ.setdefault("WORKBENCH_GRADE", "reference")

FAILED_CELL: pytest.StashKey[str] = pytest.StashKey()


@functools.cache
def uses_cuda() -> bool:
    return cells.uses_cuda(os.environ.get("WORKBENCH_DEVICE") or "auto")


def wishes(item: pytest.Item) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The metadata of a notebook and of one of its cells; None for what is no cell of a notebook."""
    notebook, cell = getattr(item.parent, "nb", None), getattr(item, "cell", None)
    if notebook is None or cell is None:
        return None
    return notebook.metadata.get("workbench", {}), cell.metadata.get("workbench", {})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        found = wishes(item)
        # Asks for torch, which takes seconds, only where a wish depends on it.
        if found and cells.why_skipped(*found, cuda=False) and not uses_cuda():
            item.add_marker(pytest.mark.skip(reason=cells.why_skipped(*found, cuda=False)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # A cell that fails leaves names undefined, so the cells after it would fail for no reason of their own.
    if wishes(item) is not None and item.parent is not None and FAILED_CELL in item.parent.stash:
        pytest.skip(f"{item.parent.stash[FAILED_CELL]} of this notebook failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    found = wishes(item)
    if found is None:
        return (yield)
    options = item.config.option
    before = options.nbval_cell_timeout
    options.nbval_cell_timeout = min(float(before), float(found[0].get("cell_timeout_s", before)))
    try:
        return (yield)
    except pytest.skip.Exception:
        raise
    except BaseException:
        assert item.parent is not None
        item.parent.stash.setdefault(FAILED_CELL, item.name)
        raise
    finally:
        options.nbval_cell_timeout = before
