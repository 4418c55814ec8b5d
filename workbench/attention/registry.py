"""The backends by name, and the one that serves a model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch

from kernels.triton.launch import interpreted
from workbench.attention import cpu, triton
from workbench.attention.choose import Choice, Needs, choose
from workbench.attention.flex import Flex
from workbench.attention.interface import AttentionBackend, Heads
from workbench.attention.sdpa import Sdpa
from workbench.attention.table import CANDIDATES
from workbench.attention.torch_native import TorchNative
from workbench.errors import WorkbenchError

BACKENDS: dict[str, Callable[[Heads], AttentionBackend]] = {
    "torch_native": TorchNative,
    "sdpa": lambda heads: Sdpa(),
    "flex": lambda heads: Flex(),
    "cpu": cpu.Cpu,
    "triton": triton.Triton,
}
"""Our own."""
ADAPTERS = ("flashinfer", "flash_attn", "fa3", "flashmla", "xformers")
"""Those that call a library; each stands in the module of its name in `workbench.attention.adapters`."""
WHY_NOT: dict[str, Callable[[Heads], str]] = {"cpu": cpu.why_not, "triton": triton.why_not}
"""Why a backend cannot serve such heads on this machine, empty if it can; of the others the table says all."""


def attention_backend(name: str, heads: Heads, block_size: int = 16, cascade: bool = False) -> AttentionBackend:
    """The backend of a name that `EngineConfig` has let through. Raises UsageError for one that cannot serve."""
    return open_backend(chosen_backend(name, heads, block_size).name, heads, cascade)


def chosen_backend(name: str, heads: Heads, block_size: int = 16, batch_invariant: bool = False) -> Choice:
    """Which backend that is, and why: see `workbench.attention.choose.choose`."""
    return choose(needs_of(heads, block_size, batch_invariant), name, lambda asked: why_not(asked, heads, name))


def open_backend(name: str, heads: Heads, cascade: bool = False) -> AttentionBackend:
    """The backend itself, whoever chose it. Raises WorkbenchError where its library is there and cannot be loaded.

    ``cascade``: heads that requests share are attended once, which only ``triton`` can and `EngineConfig` asks of no
    other.
    """
    if name == "triton":
        return triton.Triton(heads, cascade=cascade)
    if name not in ADAPTERS:
        return BACKENDS[name](heads)
    module = import_module(f"workbench.attention.adapters.{name}")
    try:
        adapter: AttentionBackend = module.Adapter(heads)
    except (ImportError, AttributeError) as error:  # built for another torch, or another release's names
        one = CANDIDATES[name]
        raise WorkbenchError(
            f"attention_backend={name!r}: {one.module} is installed and cannot be loaded ({error}); install it anew "
            f"({one.install}), or use 'auto'"
        ) from error
    return adapter


def why_not(name: str, heads: Heads, wanted: str = "auto") -> str:
    """Why a backend cannot serve such heads on this machine; empty if it can. May compile a kernel."""
    if name == "triton" and wanted == "auto" and interpreted():
        return "Triton's kernels are interpreted in this process, which is slow"
    return WHY_NOT[name](heads) if name in WHY_NOT else ""


def needs_of(heads: Heads, block_size: int = 16, batch_invariant: bool = False) -> Needs:
    device = heads.device
    capability = None
    if device.type == "cuda" and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
    latent = heads.latent
    return Needs(
        device.type,
        capability,
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        _name(heads.dtype),
        _name(heads.cache_dtype),
        block_size,
        None if latent is None else (latent.kv_lora_rank, latent.qk_rope_head_dim),
        batch_invariant,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
