"""Which backend computes attention, by name or by what the machine is."""

from __future__ import annotations

from collections.abc import Callable

from workbench.attention import cpu, triton
from workbench.attention.interface import AttentionBackend, Heads
from workbench.attention.sdpa import Sdpa
from workbench.attention.torch_native import TorchNative
from workbench.errors import UsageError

BACKENDS: dict[str, Callable[[Heads], AttentionBackend]] = {
    "torch_native": TorchNative,
    "sdpa": lambda heads: Sdpa(),
    "cpu": cpu.Cpu,
    "triton": triton.Triton,
}
WHY_NOT: dict[str, Callable[[Heads], str]] = {"cpu": cpu.why_not, "triton": triton.why_not}
"""Why a backend cannot serve such heads here, empty if it can; the others serve all."""
LATENT = ("torch_native",)
"""Those that compute latent attention, the preferred one first."""


def attention_backend(name: str, heads: Heads, cascade: bool = False) -> AttentionBackend:
    """The backend of a name that `EngineConfig` has let through. ``cascade``: heads that requests share are attended
    once, which only ``triton`` can and `EngineConfig` asks of no other.

    ``auto``: our own C++ kernel on a CPU where it can compute these heads and a compiler is there, else sdpa; for
    latent attention the first of `LATENT`. Raises UsageError for a backend asked for by name that cannot serve them.
    """
    if heads.latent is not None:
        if name not in ("auto", *LATENT):
            raise UsageError(
                f"attention_backend={name!r} cannot serve this model: it has latent attention (MLA), which only "
                f"{', '.join(LATENT)} computes so far; use {LATENT[0]!r} or 'auto'"
            )
        return BACKENDS[LATENT[0] if name == "auto" else name](heads)
    # Asking may compile the kernel, so it is asked only where the answer counts.
    if name == "auto":
        name = "sdpa" if cpu.why_not(heads) else "cpu"
    elif name in WHY_NOT and (reason := WHY_NOT[name](heads)):
        raise UsageError(f"attention_backend={name!r} cannot serve this model: {reason}; use 'sdpa' or 'auto'")
    return triton.Triton(heads, cascade=cascade) if name == "triton" else BACKENDS[name](heads)
