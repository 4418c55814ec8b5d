"""What this machine offers to a process, asked of the operating system. No torch."""

from __future__ import annotations

import os
from pathlib import Path


def free_memory() -> int:
    """Bytes of memory that a new allocation could use: what the kernel calls available, or less inside a cgroup."""
    free = _meminfo("MemAvailable")
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used))
    return free


def total_memory() -> int:
    """Bytes of memory of the machine."""
    return _meminfo("MemTotal")


def num_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's own name, or ``unknown``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _meminfo(name: str) -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
