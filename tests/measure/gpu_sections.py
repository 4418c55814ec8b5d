"""Sections for `tests/measure/test_gpu_run.py`: what a process may do wrong. No torch: they start at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale


def good(scale: Scale, report: Report, name: str) -> None:
    report.row(value=1, name=name, tiny=scale.tiny, interpret=os.environ.get("TRITON_INTERPRET"))


def raises(scale: Scale, report: Report, name: str) -> None:
    report.row(value=1)
    raise RuntimeError("the one thing that could go wrong")


def crashes_at_b(scale: Scale, report: Report, name: str) -> None:
    for item in "abc":
        if report.begin(item):
            if item == "b":
                os.abort()
            report.row(item=item)


def killed(scale: Scale, report: Report, name: str) -> None:
    """As by the kernel, when memory runs out."""
    if report.begin("x"):
        report.row(value=1)
        os.kill(os.getpid(), signal.SIGKILL)


def one_error(scale: Scale, report: Report, name: str) -> None:
    report.row(item="a", error="a: it does not fit")
    report.row(item="b")


def hangs(scale: Scale, report: Report, name: str) -> None:
    """With a child of its own, which must not outlive it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report.begin("the long one")
    report.row(child=child.pid)
    time.sleep(600)


def no_gpu(scale: Scale, report: Report, name: str) -> None:
    report.row(no_gpu=True, error="no GPU here")


def half_a_line(scale: Scale, report: Report, name: str) -> None:
    report.row(item="whole")
    with Path(sys.argv[3]).open("a", encoding="utf-8") as file:
        file.write('{"row": {"item": "ha')
