"""Compiles the C++ kernels once and loads them.

The sources include no header of torch, so a build takes seconds instead of a minute. The library is kept in
``WORKBENCH_HOME`` under a hash of its sources, compiler and flags: changed kernels are built anew, old ones are never
loaded by mistake. There are two builds, for AVX2 with FMA and F16C and for any processor; what this processor can run
is asked when the kernels are loaded. ``WORKBENCH_CPU_KERNELS=avx2|portable|none`` overrules that.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi")
BUILDS: dict[str, tuple[str, ...]] = {"avx2": ("-mavx2", "-mfma", "-mf16c"), "portable": ()}
SECONDS = 120


class CannotBuild(RuntimeError):
    """There is no compiler, or it refused; the message says which."""


def library() -> ctypes.CDLL:
    """The compiled kernels. Raises CannotBuild with the reason each time; it is tried only once."""
    found = _library()
    if isinstance(found, str):
        raise CannotBuild(found)
    return found


def cannot_run() -> str:
    """Why this machine cannot run the kernels; empty if it can. The first call builds them."""
    found = _library()
    return found if isinstance(found, str) else ""


@functools.cache
def _library() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    try:
        return _build()
    except CannotBuild as error:
        return str(error)


def _build() -> ctypes.CDLL:
    build = build_name()
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise CannotBuild("no C++ compiler found (c++ or g++)")
    command = [compiler, *FLAGS, *BUILDS[build]]
    target = home() / "kernels" / f"{build}-{digest(*command)[:16]}.so"
    if not target.exists():
        _compile(command, target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise CannotBuild(f"{target.name} cannot be loaded: {error}") from None


def digest(*more: str) -> str:
    """Of all sources, and of ``more``."""
    found = hashlib.sha256("\0".join(more).encode())
    for path in (*sources(), *sorted(FOLDER.glob("*.h"))):
        found.update(path.read_bytes())
    return found.hexdigest()


def sources() -> list[Path]:
    """All that is compiled into the one library."""
    return sorted(FOLDER.glob("*.cpp"))


def build_name() -> str:
    """``avx2`` or ``portable``. Raises CannotBuild where the environment says ``none``."""
    wanted = os.environ.get("WORKBENCH_CPU_KERNELS", "auto")
    if wanted == "none":
        raise CannotBuild("WORKBENCH_CPU_KERNELS=none")
    if wanted in BUILDS:
        return wanted
    if wanted != "auto":
        raise CannotBuild(f"WORKBENCH_CPU_KERNELS={wanted!r} is not one of auto, none, {', '.join(BUILDS)}")
    return "avx2" if {"avx2", "fma", "f16c"} <= _cpu_flags() else "portable"


def _compile(command: list[str], target: Path) -> None:
    """Each source by itself, as many at a time as there are processors, then all together."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = {source: str(Path(folder, f"{source.stem}.o")) for source in sources()}
            for _ in pool.map(lambda pair: _run([*command, "-c", str(pair[0]), "-o", pair[1]]), objects.items()):
                pass
            # Under another name first: whoever builds at the same time must never load half a file.
            built = Path(folder, target.name)
            _run([*command, "-shared", *objects.values(), "-o", str(built)])
            os.replace(built, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{target.name} cannot be built: {error}") from None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise CannotBuild(f"{command[0]} failed: {reason}")


def home() -> Path:
    """Where everything that is made once and used again is kept."""
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
