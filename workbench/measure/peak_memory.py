"""The most memory that a call takes while it runs, beyond what was taken before it."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""What Linux wants to be told to begin a new peak (proc_pid_clear_refs(5))."""


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes. On a GPU what torch's allocator says. On a CPU the resident memory of this process, as Linux counts it: to
    some MB; what the call returns counts too. Raises WorkbenchError where the system does not tell."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return int(torch.cuda.max_memory_allocated() - before)
    _give_back_freed()
    try:
        _CLEAR.write_text(_FORGET_PEAK, encoding="ascii")
        before = _resident("VmRSS")
        call()
        return max(0, _resident("VmHWM") - before)
    except OSError as error:
        raise WorkbenchError(f"this system does not tell a process its peak of memory ({error}); Linux does") from error


def can_tell() -> bool:
    """Whether `peak_bytes` works for CPU memory here."""
    try:
        _CLEAR.write_text(_FORGET_PEAK, encoding="ascii")
        return _resident("VmHWM") > 0
    except OSError:
        return False


def _give_back_freed() -> None:
    """Memory that was freed and kept would be used again by the call, and its peak would not show (glibc only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {name}")
    return int(found[1]) * 1024
