"""What a lesson runs on, found out once and printed first: device, memory, versions, the canary, and the mode.

The mode says what the numbers of a lesson are worth:

``measured``
    Everything the lesson runs is run natively on this machine, GPU or CPU, and timed.
``interpreter``
    The lesson has Triton kernels and there is no GPU. They run in Triton's interpreter, which gives right results at
    no meaningful speed; all else is measured on the CPU.
``recorded``
    The lesson has Triton kernels and they cannot be run or trusted here (the canary failed). Of them there are only
    saved outputs and recorded results of other machines; all else is measured.
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from workbench import doctor
from workbench.files import write_atomically
from workbench.machine import free_memory
from workbench.model.store import home

LIBRARIES = ("torch", "triton", "transformers")
SENTENCES = {
    "measured": "every number comes from this machine, now",
    "interpreter": "Triton kernels run in the interpreter, right but not fast; all else is measured on this CPU",
    "recorded": "Triton kernels cannot run here: a cell that calls one stops; all else is measured",
}
NOT_NEEDED = "not asked: this notebook has no Triton kernel"
GIB = 1 << 30


class Surroundings(NamedTuple):
    device: str
    """``cpu`` or ``cuda``"""
    described: str
    """The device's name and its number of cores, as the doctor says it."""
    capability: str
    free_bytes: int
    """Of the device's memory."""
    versions: dict[str, str]
    canary: str
    mode: str


def look_around(device: str, triton: bool) -> Surroundings:
    """Finds out about ``device`` (``cpu`` or ``cuda``). ``triton``: the lesson runs Triton kernels.

    The canary takes seconds, so an answer that was right is kept in WORKBENCH_HOME until a version or the device
    changes, and a lesson without Triton kernels does not ask for one.
    """
    found = {check.name: check for check in doctor.run_checks(["device", "capability"])}
    versions = {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}
    described = found["device"].value
    canary, ok = _canary(" ".join([described, *versions.values(), _version("numpy")]), triton)
    free = _free_bytes(device)
    return Surroundings(
        device, described, found["capability"].value, free, versions, canary, mode_of(device, triton, ok)
    )


def mode_of(device: str, triton: bool, canary_ok: bool) -> str:
    """``measured``, ``interpreter`` or ``recorded``, as this file's first lines define them."""
    if not triton:
        return "measured"
    if not canary_ok:
        return "recorded"
    return "measured" if device == "cuda" else "interpreter"


def banner(title: str, around: Surroundings, tier: str, seed: int, notes: list[str]) -> str:
    """The block of text that a lesson begins with."""
    versions = ", ".join(f"{name} {number}" for name, number in around.versions.items())
    lines = [
        ("device", f"{around.described}; {around.capability}"),
        ("memory", f"{around.free_bytes / GIB:.1f} GiB free; tier {tier}; seed {seed}"),
        ("versions", versions),
        ("canary", around.canary),
        ("mode", f"{around.mode}: {SENTENCES[around.mode]}"),
        *(("note", note) for note in notes),
    ]
    return "\n".join([title, *(f"  {name:<9} {text}" for name, text in lines)])


def _canary(key: str, needed: bool) -> tuple[str, bool]:
    """What the doctor's canary said and whether it was right."""
    path = home() / "canary.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # a file that is not there or damaged is as good as none
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return str(kept["value"]), True
    if not needed:
        return NOT_NEEDED, False
    (check,) = doctor.run_checks(["canary"])
    if check.ok:
        with suppress(OSError):  # it is asked again next time
            write_atomically(path, json.dumps({"key": key, "value": check.value}) + "\n")
    return check.value, check.ok


def _free_bytes(device: str) -> int:
    if device == "cpu":
        return free_memory()
    import torch

    return int(torch.cuda.mem_get_info()[0])


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"
