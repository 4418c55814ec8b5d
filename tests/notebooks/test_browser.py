"""Notebooks as a reader meets them: JupyterLab in a real Chromium, Run All from the menu, every output looked at.

``WORKBENCH_SCREENSHOTS=FOLDER`` keeps the pictures, page by page in a light and a dark theme, for a person to look at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOKEN = "only-for-this-test"
RUN_SECONDS = 300
# No sandbox as root, and nothing of Chromium's own on the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # All cells in the page at once, so that pictures show them.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => ({
    kind: cell.model.type, id: cell.model.id, source: cell.model.sharedModel.getSource(),
    count: cell.model.executionCount ?? null, running: cell.model.executionState === 'running',
    outputs: cell.model.outputs ? cell.model.outputs.toJSON() : []}))"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the notebooks, with settings of its own."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".ipynb*"))
    for name, values in SETTINGS.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "WORKBENCH_TIER": "tiny",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
               "--ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
               f"--IdentityProvider.token={TOKEN}"]  # fmt: skip
    log = home / "lab.log"
    with log.open("w") as file:
        server = subprocess.Popen(command, cwd=home / "notebooks", env=environment, stdout=file, stderr=file)
    try:
        _wait_for_port(port, server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/{{name}}?token={TOKEN}"
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_run_all_in_jupyterlab(path: Path, lab: str, chromium: str, tmp_path: Path):
    from playwright.sync_api import sync_playwright

    pictures = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(lab.format(name=path.name))
        page.locator(".jp-NotebookPanel:visible h1").first.wait_for(timeout=90_000)
        _wait_for_kernel(page)
        _clear_outputs(page)
        assert not any(cell["outputs"] or cell["count"] for cell in page.evaluate(CELLS)), (
            "an old output is still there"
        )
        page.locator(".lm-MenuBar-item", has_text=re.compile(r"^Run$")).click()
        page.locator(".lm-Menu-item", has_text=re.compile(r"Run All Cells")).first.click()
        try:
            cells = _wait_until_run(page)
        except AssertionError:
            page.screenshot(path=pictures / f"{path.stem}-stuck.png")
            raise
        for theme in ("Light", "Dark"):
            page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
                          f"JupyterLab {theme}")  # fmt: skip
            page.wait_for_timeout(1500)
            _picture_pages(page, pictures, f"{path.stem}-{theme.lower()}")
        broken = page.evaluate("() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
        browser.close()
    assert broken == []
    for cell in cells:
        assert cell["count"] is not None, f"{cell['id']} was not run"
        errors = [out for out in cell["outputs"] if out["output_type"] == "error" or out.get("name") == "stderr"]
        assert errors == [], cell["id"]


def _wait_for_kernel(page: Any) -> None:
    """Run All before the kernel answers can be lost."""
    context = "window.jupyterapp.shell.currentWidget.sessionContext"
    page.wait_for_function(f"() => {context}.isReady && {context}.kernelDisplayStatus === 'idle'", timeout=120_000)


def _clear_outputs(page: Any) -> None:
    """So that what is seen afterwards is what was run, not what the file brought."""
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")


def _wait_until_run(page: Any) -> list[dict[str, Any]]:
    """The code cells, once each has a number or one has an error."""
    end = time.monotonic() + RUN_SECONDS
    cells: list[dict[str, Any]] = []
    while time.monotonic() < end:
        page.wait_for_timeout(1000)
        cells = [cell for cell in page.evaluate(CELLS) if cell["kind"] == "code" and cell["source"].strip()]
        failed = any(out["output_type"] == "error" for cell in cells for out in cell["outputs"])
        if failed or all(cell["count"] is not None and not cell["running"] for cell in cells):
            return cells
    waiting = [cell["id"] for cell in cells if cell["count"] is None]
    raise AssertionError(f"after {RUN_SECONDS} s these cells had not run: {waiting}")


def _picture_pages(page: Any, folder: Path, name: str) -> None:
    """One picture for each screenful of the notebook."""
    area = page.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer")
    height, seen = area.evaluate("e => [e.scrollHeight, e.clientHeight]")
    for number in range(-(-height // seen)):
        area.evaluate("(e, top) => { e.scrollTop = top }", number * seen)
        page.wait_for_timeout(200)
        page.screenshot(path=folder / f"{name}-{number:02}.png")


def _wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(900):
        assert server.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not answer in 90 s:\n{log.read_text(encoding='utf-8')}")
