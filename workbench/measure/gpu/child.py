"""One section in this process: ``python -m workbench.measure.gpu.child NAME FUNCTION ROWS.jsonl``, and a `Scale` as
JSON on standard input."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from workbench.measure.gpu.report import Report, read
from workbench.measure.gpu.scale import Scale


def main(name: str, function: str, rows: str) -> None:
    file = Path(rows)
    given = json.load(sys.stdin)
    scale = Scale(**{**given, "notebooks": tuple(given["notebooks"])})
    module, _, attribute = function.partition(":")
    run = getattr(importlib.import_module(module), attribute)
    run(scale, Report(file, frozenset(read(file)[1])), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
