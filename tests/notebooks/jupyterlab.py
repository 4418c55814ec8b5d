"""A real JupyterLab for the browser tests: served from a folder, opened in Chromium, Run All from the menu."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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


@contextmanager
def serve(home: Path) -> Iterator[str]:
    """Serves ``home/notebooks`` with settings of its own; the address has ``{name}`` for a notebook's file name."""
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
        # Reset: otherwise the notebooks of earlier tests open again beside this one, and one takes the other's place.
        yield f"http://127.0.0.1:{port}/lab/tree/{{name}}?reset&token={TOKEN}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def open_notebook(page: Any, address: str) -> None:
    """Opens a notebook that has a heading and waits for its kernel: Run All before it answers can be lost."""
    page.goto(address)
    page.locator(".jp-NotebookPanel:visible h1").first.wait_for(timeout=90_000)
    context = "window.jupyterapp.shell.currentWidget.sessionContext"
    page.wait_for_function(f"() => {context}.isReady && {context}.kernelDisplayStatus === 'idle'", timeout=120_000)


def run_all(page: Any, stuck: Path) -> list[dict[str, Any]]:
    """Clears all outputs, runs all cells from the menu and returns the code cells; ``stuck``: a picture if it hangs."""
    # So that what is seen afterwards is what was run, not what the file brought.
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    assert not any(cell["outputs"] or cell["count"] for cell in page.evaluate(CELLS)), "an old output is still there"
    page.locator(".lm-MenuBar-item", has_text=re.compile(r"^Run$")).click()
    page.locator(".lm-Menu-item", has_text=re.compile(r"Run All Cells")).first.click()
    try:
        return _wait_until_run(page)
    except AssertionError:
        page.screenshot(path=stuck)
        raise


def set_theme(page: Any, theme: str) -> None:
    """``Light`` or ``Dark``."""
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
                  f"JupyterLab {theme}")  # fmt: skip
    page.wait_for_timeout(1500)


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


def _wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(900):
        assert server.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not answer in 90 s:\n{log.read_text(encoding='utf-8')}")
