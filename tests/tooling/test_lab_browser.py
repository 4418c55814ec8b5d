"""What `make lab` opens, seen by a browser: the first notebook is shown and its kernel computes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# No sandbox as root; nothing of Chromium's own on the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab on a free port, started as `make lab ARGS=--no-browser` starts it, but on a copy of
    the notebooks, as JupyterLab saves what it shows."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    arguments = f"--no-browser --ServerApp.port=0 --ServerApp.root_dir={tmp_path}"
    command = ["make", "--no-print-directory", "open", f"ARGS={arguments}"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield address(server, log)
        finally:
            server.terminate()
            server.wait(timeout=30)


def address(server, log):
    for _ in range(600):
        log.seek(0)
        text = log.read()
        if found := re.search(r"http://(?:localhost|127\.0\.0\.1):[1-9]\d*/\S+token=\w+", text):
            return found[0]
        assert server.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start in a minute:\n{text}")


@pytest.mark.browser
@pytest.mark.timeout(240)
def test_the_first_notebook_opens_and_its_kernel_computes(lab, chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(lab)
        notebook = page.locator(".jp-NotebookPanel:visible")
        notebook.locator("h1").first.wait_for(timeout=60_000)
        # A key pressed before the kernel is there is lost.
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        code = notebook.locator(".jp-CodeCell").first
        code.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        # A number in the prompt means that the kernel ran the cell to its end.
        code.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[\d+\]")).wait_for(timeout=120_000)
        complaints = code.locator("[data-mime-type='application/vnd.jupyter.stderr']").all_text_contents()
        assert complaints == []
        browser.close()
