"""The sections in their order, and how long each may take. What comes first matters most. No torch."""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    name: str
    function: str
    """``module:function``: takes a `Scale`, a `Report` and `name`."""
    seconds: float
    """Its limit; together they are under eight minutes."""
    quick: float
    """Its limit in a quick run; 0: left out there."""


HERE = "workbench.measure.gpu"
SECTIONS = (
    Section("device", f"{HERE}.device:device", 20, 20),
    Section("compile", f"{HERE}.compile_all:compile_all", 75, 40),
    Section("correctness", f"{HERE}.correctness:correctness", 75, 40),
    Section("ceilings", f"{HERE}.ceilings:ceilings", 20, 15),
    Section("attention", f"{HERE}.kernels:kernels", 50, 20),
    Section("paged", f"{HERE}.kernels:kernels", 25, 10),
    Section("latent", f"{HERE}.kernels:kernels", 15, 10),
    Section("fused", f"{HERE}.kernels:kernels", 20, 10),
    Section("w4a16", f"{HERE}.kernels:kernels", 20, 10),
    Section("sampling", f"{HERE}.kernels:kernels", 10, 5),
    Section("engine-qwen3-0.6b", f"{HERE}.engine:engine", 45, 20),
    Section("engine-qwen2.5-7b", f"{HERE}.engine:engine", 45, 0),
    Section("notebooks", f"{HERE}.notebooks:notebooks", 50, 0),
)
TOTAL_SECONDS = 475
"""The whole run, its own work between sections included."""
