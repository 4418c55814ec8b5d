"""What is timed: a case is one operation at one shape, made by several contenders from the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from workbench.measure.gpu.scale import Scale

OURS = "workbench"
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], dict[str, Call]]
    """By contender, what calls it. Takes the memory, so it is called when the case's turn comes."""
    flops: float = 0.0
    bytes: float = 0.0
    """Of one call: what it computes, and what it must read and write at least."""


GROUPS = {name: f"{name}_cases" for name in ("attention", "paged", "latent", "fused", "w4a16", "sampling")}
"""By section, the module of its ``cases(scale)``."""


def cases(group: str, scale: Scale) -> list[Case]:
    """Raises RuntimeError with the reason where this version has no such operation for a GPU."""
    return list(import_module(f"workbench.measure.gpu.{GROUPS[group]}").cases(scale))


def drawn(*shape: int, scale: Scale, seed: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Normal random numbers, in bfloat16 on a GPU: multiplying zeros takes less power, so clocks are higher."""
    kind = dtype or (torch.bfloat16 if scale.device == "cuda" else torch.float32)
    generator = torch.Generator(device=scale.device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=scale.device, dtype=torch.float32).to(kind)
