"""Which backend computes attention, by name or by what the machine is."""

from __future__ import annotations

from collections.abc import Callable

from workbench.attention.interface import AttentionBackend
from workbench.attention.sdpa import Sdpa
from workbench.attention.torch_native import TorchNative

BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"torch_native": TorchNative, "sdpa": Sdpa}


def attention_backend(name: str) -> AttentionBackend:
    """The backend of a name that `EngineConfig` has let through. ``auto``: sdpa, the fastest there is so far."""
    return BACKENDS["sdpa" if name == "auto" else name]()
