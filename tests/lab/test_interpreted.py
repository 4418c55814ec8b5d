"""A lesson with Triton kernels and no GPU interprets them, if Triton was not imported before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workbench.lab import interpreted
from workbench.lab.interpreted import interpret

pytest.importorskip("triton")
ASK = """
import os, sys
if "first" in sys.argv:
    import triton
from workbench.lab.interpreted import interpret
notes = [interpret(mode) for mode in ("measured", "recorded")]
assert notes == ["", ""] and "TRITON_INTERPRET" not in os.environ
note = interpret("interpreter")
from kernels.triton.interpreter import interpreting
print(interpreting(), note)
"""


@pytest.mark.parametrize(
    ("argument", "said"),
    [("", "True"), ("first", "False Triton was imported before the lesson began, to compile: restart and run")],
)
def test_only_a_lesson_in_the_interpreters_mode_interprets(argument: str, said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", ASK, argument]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)


def test_where_triton_is_missing_the_reader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "find_spec", lambda name: None)
    assert interpret("recorded").startswith("Triton is not installed: it is made for Linux")
    assert interpret("measured") == ""
