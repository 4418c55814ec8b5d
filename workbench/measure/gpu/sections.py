"""The sections in their order, and how long each may take. What comes first matters most. No torch."""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    name: str
    function: str
    """``module:function`` in this package: takes a `Scale` and a `Report`, and may take `Section.name`."""
    seconds: float
    """Its limit; together they are under eight minutes."""
    quick: float
    """Its limit in a quick run; 0: left out there."""


SECTIONS = (
    Section("device", "device:device", 20, 20),
    Section("compile", "compile_all:compile_all", 95, 40),
    Section("correctness", "correctness:correctness", 90, 40),
    Section("ceilings", "ceilings:ceilings", 20, 15),
    Section("attention", "kernels:kernels", 60, 20),
    Section("paged", "kernels:kernels", 30, 10),
    Section("fused", "kernels:kernels", 25, 10),
    Section("sampling", "kernels:kernels", 10, 5),
    Section("engine-qwen3-0.6b", "engine:engine", 45, 20),
    Section("engine-qwen2.5-7b", "engine:engine", 50, 0),
    Section("notebooks", "notebooks:notebooks", 30, 0),
)
TOTAL_SECONDS = 475
"""The whole run, its own work between sections included."""


def section(name: str) -> Section:
    return next(one for one in SECTIONS if one.name == name)
