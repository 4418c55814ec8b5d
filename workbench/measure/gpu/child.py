"""One section in this process: ``python -m workbench.measure.gpu.child NAME FUNCTION ROWS.jsonl``, and a `Scale` as
JSON in the first line of standard input, which then stays open: when it ends, whoever started the section is gone."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from workbench.measure.gpu.report import Report, read
from workbench.measure.gpu.scale import Scale


def main(name: str, function: str, rows: str) -> None:
    file = Path(rows)
    given = json.loads(_first_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    scale = Scale(**{**given, "notebooks": tuple(given["notebooks"])})
    module, _, attribute = function.partition(":")
    run = getattr(importlib.import_module(module), attribute)
    run(scale, Report(file, frozenset(read(file)[1])), name)


def _first_line() -> bytes:
    """Of the descriptor, not of `sys.stdin`: a thread that waits in that would hold its lock when Python ends."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line


def _end_with_parent() -> None:
    """A run that is killed can end nothing itself, and what holds a GPU would hold it for ever."""
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
