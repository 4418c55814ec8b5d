"""Where Triton kernels run, and what all their launchers ask of tensors. Imports triton only when it must.

Compiled on a GPU; interpreted, on a CPU, in a process that was started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
NOT_INSTALLED = "triton is not installed; it is for Linux: pip install triton"


@cache
def cannot_compile() -> str:
    """Why Triton cannot compile and run kernels on a GPU of this machine; empty if it can."""
    if find_spec("triton") is None:
        return NOT_INSTALLED
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU here"
    return ""


def interpreted() -> bool:
    """Whether kernels of this process run in Triton's interpreter, on tensors of any device."""
    if "triton" not in sys.modules and (not os.environ.get("TRITON_INTERPRET") or find_spec("triton") is None):
        return False
    from kernels.triton.interpreter import interpreting

    return interpreting()


def runs_here() -> bool:
    """Whether Triton kernels can run in this process at all."""
    return not cannot_compile() or interpreted()


def cannot_run(device: torch.device) -> str:
    """Why kernels cannot run on tensors of this device in this process; empty if they can."""
    if interpreted():
        return ""
    if find_spec("triton") is None:
        return NOT_INSTALLED
    if device.type != "cuda":
        return f"it runs on GPUs, not on {device}, unless Python was started with TRITON_INTERPRET=1"
    return cannot_compile()


def on_gpu(device: torch.device) -> bool:
    """Whether tensors there are laid out for Triton kernels, and not for the C++ ones."""
    return device.type == "cuda"


def suits(x: torch.Tensor) -> bool:
    """Whether ``auto`` should look at Triton for this tensor: it lies on a GPU for which kernels are compiled."""
    return x.device.type == "cuda" and not cannot_compile()


def require(op: str, reason: str, *tensors: torch.Tensor | None) -> None:
    """Raises ValueError if there is a ``reason`` against the call, or tensors lie where kernels cannot run."""
    if reason:
        raise ValueError(f"{op} in Triton: {reason}; use maker='reference'")
    for device in {tensor.device for tensor in tensors if tensor is not None}:
        if why := cannot_run(device):
            raise ValueError(f"{op} in Triton: {why}; use maker='reference'")


def strange(**tensors: torch.Tensor | None) -> str:
    """What a kernel cannot take of its tensors, by name: one that is no float of 16 or 32 bits, or whose last numbers
    do not lie side by side. Empty if nothing."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.dtype not in FLOATS:
            return f"{name} is {tensor.dtype}, and it takes float16, bfloat16 and float32"
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            return f"the last numbers of {name} do not lie side by side (strides {tensor.stride()})"
    return ""


def shared(**tensors: torch.Tensor | None) -> str:
    """Which tensor, by name, a kernel cannot write into since several of its numbers lie in one place (`expand`); empty
    if none."""
    for name, tensor in tensors.items():
        if tensor is not None and any(tensor.stride(i) == 0 for i in range(tensor.ndim) if tensor.shape[i] > 1):
            return f"{name} is written, and several of its numbers lie in one place (strides {tensor.stride()})"
    return ""


def as_rows(x: torch.Tensor) -> torch.Tensor | None:
    """``x`` as ``[rows, last]`` over the same memory, or None where no single stride leads from row to row."""
    if x.dim() == 2:
        return x
    try:
        return x.view(-1, x.shape[-1]) if x.shape[-1] else None
    except RuntimeError:
        return None
