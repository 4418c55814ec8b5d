"""Triton's interpreter, made ready before a lesson imports Triton: whether kernels are compiled or interpreted Triton
decides when it is imported, once a process."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec


def interpret(mode: str) -> str:
    """For a lesson in mode ``interpreter`` kernels of this process are interpreted from now on.

    Returns what the reader must know: empty, that Triton is missing, or that it was imported to compile before the
    lesson began.
    """
    if mode == "recorded" and find_spec("triton") is None:
        return "Triton is not installed: it is made for Linux (elsewhere WSL or a container); read the saved outputs"
    if mode != "interpreter":
        return ""
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
        return ""
    from kernels.triton.interpreter import interpreting

    return "" if interpreting() else "Triton was imported before the lesson began, to compile: restart and run again"
