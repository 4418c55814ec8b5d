"""Compiles a kernel's source once and loads it.

The sources include no header of torch, so a build takes two seconds instead of a minute. The library is kept in
``WORKBENCH_HOME`` under a hash of its sources, compiler and flags: a changed kernel is built anew, an old one is never
loaded by mistake. There are two builds, for AVX2 with FMA and for any processor; what this processor can run is
asked when a kernel is loaded. ``WORKBENCH_CPU_KERNELS=avx2|portable|none`` overrules that.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi")
BUILDS: dict[str, tuple[str, ...]] = {"avx2": ("-mavx2", "-mfma"), "portable": ()}
SECONDS = 120


class CannotBuild(RuntimeError):
    """There is no compiler, or it refused; the message says which."""


def library(name: str) -> ctypes.CDLL:
    """The compiled ``kernels/cpu/<name>.cpp``. Raises CannotBuild with the reason each time; it is tried only once."""
    found = _library(name)
    if isinstance(found, str):
        raise CannotBuild(found)
    return found


@functools.cache
def _library(name: str) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    try:
        return _build(name)
    except CannotBuild as error:
        return str(error)


def _build(name: str) -> ctypes.CDLL:
    build = build_name()
    source = FOLDER / f"{name}.cpp"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise CannotBuild("no C++ compiler found (c++ or g++)")
    command = [compiler, *FLAGS, *BUILDS[build]]
    digest = hashlib.sha256("\0".join(command).encode())
    for path in (source, *sorted(FOLDER.glob("*.h"))):
        digest.update(path.read_bytes())
    target = _home() / "kernels" / f"{name}-{build}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        _compile([*command, str(source)], target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise CannotBuild(f"{target.name} cannot be loaded: {error}") from None


def build_name() -> str:
    """``avx2`` or ``portable``. Raises CannotBuild where the environment says ``none``."""
    wanted = os.environ.get("WORKBENCH_CPU_KERNELS", "auto")
    if wanted == "none":
        raise CannotBuild("WORKBENCH_CPU_KERNELS=none")
    if wanted in BUILDS:
        return wanted
    if wanted != "auto":
        raise CannotBuild(f"WORKBENCH_CPU_KERNELS={wanted!r} is not one of auto, none, {', '.join(BUILDS)}")
    return "avx2" if {"avx2", "fma"} <= _cpu_flags() else "portable"


def _compile(command: list[str], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            # Under another name first: whoever builds at the same time must never load half a file.
            built = Path(folder, target.name)
            done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=SECONDS)
            if done.returncode != 0:
                reason = (done.stderr.strip().splitlines() or ["no message"])[0]
                raise CannotBuild(f"{command[0]} failed: {reason}")
            os.replace(built, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{target.name} cannot be built: {error}") from None


def _home() -> Path:
    own = os.environ.get("WORKBENCH_HOME")
    return (
        Path(own).expanduser()
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"
    )


@functools.cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
