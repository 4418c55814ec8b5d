"""Notebooks as a reader meets them: JupyterLab in a real Chromium, Run All from the menu, every output looked at.

``WORKBENCH_SCREENSHOTS=FOLDER`` keeps the pictures, page by page in a light and a dark theme, for a person to look at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.jupyterlab import FLAGS, ROOT, open_notebook, run_all, serve, set_theme

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the notebooks."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".ipynb*"))
    with serve(home) as address:
        yield address


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_run_all_in_jupyterlab(path: Path, lab: str, chromium: str, tmp_path: Path):
    from playwright.sync_api import sync_playwright

    pictures = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        open_notebook(page, lab.format(name=path.name))
        cells = run_all(page, pictures / f"{path.stem}-stuck.png")
        for theme in ("Light", "Dark"):
            set_theme(page, theme)
            _picture_pages(page, pictures, f"{path.stem}-{theme.lower()}")
        broken = page.evaluate("() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
        browser.close()
    assert broken == []
    for cell in cells:
        assert cell["count"] is not None, f"{cell['id']} was not run"
        errors = [out for out in cell["outputs"] if out["output_type"] == "error" or out.get("name") == "stderr"]
        assert errors == [], cell["id"]


def _picture_pages(page: Any, folder: Path, name: str) -> None:
    """One picture for each screenful of the notebook."""
    area = page.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer")
    height, seen = area.evaluate("e => [e.scrollHeight, e.clientHeight]")
    for number in range(-(-height // seen)):
        area.evaluate("(e, top) => { e.scrollTop = top }", number * seen)
        page.wait_for_timeout(200)
        page.screenshot(path=folder / f"{name}-{number:02}.png")
