"""What all tests share: the `proof` fixture and its table, and Chromium for the browser tests.

`proof.report("40 prompts equal transformers", "40/40")` adds a row; the run ends with one table of all rows, so that a
long demonstration leaves figures behind and not only a dot. Any test may report; `make proof` runs those so marked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# Without a GPU, Triton's kernels are interpreted. Triton decides this when it is imported, so it is said before any
# test does; a child process that compiles for a GPU that is not here takes the variable out of its environment.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


class Row(NamedTuple):
    test: str
    shown: str
    figures: str


SHOWN = "shown"


class Proof:
    """Collects what one test showed, in the test's report, which reaches the summary from other processes too."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def report(self, shown: str, figures: object) -> None:
        """``shown``: what was shown, in words; ``figures``: the numbers."""
        self._properties.append((SHOWN, [shown, str(figures)]))


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Proof:
    return Proof(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    ran = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    ran = [report for report in ran if report.when == "call"]
    rows = [Row(report.nodeid, *row) for report in ran for name, row in report.user_properties if name == SHOWN]
    if not rows:
        return
    failed = [report.nodeid for key in ("failed", "error") for report in terminalreporter.stats.get(key, [])]
    told = {row.test for row in rows}
    # One that failed before its report must not be missing from the table.
    rows += [Row(test, "nothing: it failed before its report", "") for test in failed if test not in told]
    lines = [("test", "what it showed", "figures", "")]
    lines += [(row.test.split("::", 1)[-1], *row[1:], "FAILED" if row.test in failed else "") for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    terminalreporter.section("what was shown")
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line(text.rstrip())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model without a tokenizer. Tests read it and write nothing into it."""
    from tests.model.tiny import make_tiny

    path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path, seed=2)
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    """Path of a Chromium that playwright may drive; skips where there is none (`.ci/browser.sh` installs one)."""
    pytest.importorskip("playwright", reason="playwright is not installed: make setup EXTRAS='dev browser'")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: as root, .ci/browser.sh installs it")
    yield path
