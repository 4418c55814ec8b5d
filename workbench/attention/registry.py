"""Which backend computes attention, by name or by what the machine is."""

from __future__ import annotations

from collections.abc import Callable

from workbench.attention.cpu import Cpu, why_not
from workbench.attention.interface import AttentionBackend, Heads
from workbench.attention.sdpa import Sdpa
from workbench.attention.torch_native import TorchNative
from workbench.errors import UsageError

BACKENDS: dict[str, Callable[[Heads], AttentionBackend]] = {
    "torch_native": lambda heads: TorchNative(),
    "sdpa": lambda heads: Sdpa(),
    "cpu": Cpu,
}


def attention_backend(name: str, heads: Heads) -> AttentionBackend:
    """The backend of a name that `EngineConfig` has let through.

    ``auto``: our own C++ kernel on a CPU where it can compute these heads and a compiler is there, else sdpa. Raises
    UsageError for a backend asked for by name that cannot serve them.
    """
    # Asking may compile the kernel, so it is asked only where the answer counts.
    reason = why_not(heads) if name in ("auto", "cpu") else ""
    if name == "auto":
        name = "sdpa" if reason else "cpu"
    elif name == "cpu" and reason:
        raise UsageError(f"attention_backend='cpu' cannot serve this model: {reason}; use 'sdpa' or 'auto'")
    return BACKENDS[name](heads)
