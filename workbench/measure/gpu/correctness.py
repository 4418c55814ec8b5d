"""The tests marked ``gpu_quick``, in several processes at once: before a kernel is timed, is it right on this chip?

Only pytest itself is needed: the project's own settings, which ask for plugins, are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from workbench.measure.gpu.drive import ROOT
from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale

TESTS = "tests/kernels/triton"
MARK = "gpu_quick"
PYTEST = (sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "--confcutdir", str(ROOT),
          "-p", "no:cacheprovider", "-p", "no:randomly", "-m", MARK, "-W", "ignore")  # fmt: skip
MOST_WORKERS = 16
OUTCOME = re.compile(r"^(\S+\.py::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b")


def correctness(scale: Scale, report: Report, name: str) -> None:
    """A row ``{test, outcome}`` for each test, as soon as it is over; ``error`` for one that did not pass."""
    found = collected(scale.pick((TESTS,), (f"{TESTS}/test_merge_states.py",)))
    tests = [test for test in found if report.begin(test)] if not scale.tiny else found[:3]
    if not tests:
        raise RuntimeError(f"no test in {TESTS} is marked {MARK}")
    workers = min(MOST_WORKERS, os.cpu_count() or 1, len(tests))
    with tempfile.TemporaryDirectory() as scratch:
        shares = [_Share(Path(scratch, f"{n}.txt"), tests[n::workers]) for n in range(workers)]
        while shares:
            shares = [share for share in shares if share.told(report)]
            time.sleep(0.2)


def collected(paths: Sequence[str]) -> list[str]:
    """Ids of the marked tests. Raises RuntimeError with pytest's words where they cannot be collected."""
    done = subprocess.run([*PYTEST, "--collect-only", "-q", *paths], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pytest cannot collect the tests: {(done.stdout + done.stderr)[-300:]}")
    return [line for line in done.stdout.splitlines() if "::" in line]


class _Share:
    """One process of pytest and the outcomes it has told."""

    def __init__(self, file: Path, tests: list[str]) -> None:
        self._left = set(tests)
        self._out: IO[bytes] = file.open("wb")
        self._in = file.open(encoding="utf-8", errors="replace")
        self._begun = ""
        self._process = subprocess.Popen([*PYTEST, "-v", "--tb=line", *tests], cwd=ROOT, stdout=self._out,
                                         stderr=subprocess.STDOUT)  # fmt: skip

    def told(self, report: Report) -> bool:
        """Hands over what is new; whether there may be more."""
        over = self._process.poll() is not None
        self._begun += self._in.read()
        *lines, self._begun = self._begun.split("\n")
        for line in lines:
            if (match := OUTCOME.match(line)) and match[1] in self._left:
                self._left.remove(match[1])
                bad = match[2] in ("FAILED", "ERROR")
                report.row(
                    test=match[1], outcome=match[2].lower(), **({"error": f"{match[1]} {match[2]}"} if bad else {})
                )
        if over:
            for test in sorted(self._left):
                report.row(
                    test=test, outcome="lost", error=f"{test}: pytest ended ({self._process.returncode}) before it"
                )
            self._left.clear()
        return not over
