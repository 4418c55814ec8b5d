"""What every rung of attention does on the host: check the tensors, choose the numbers, make the results, launch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from kernels.triton.flash_tiles import Tiles, tiles
from kernels.triton.launch import FLOATS, cannot_run, interpreted, require, strange

LOG2_E = math.log2(math.e)
MAX_HEAD_DIM = 256
LEAST_CAPABILITY = 80
"""Compute capability times ten. Older chips have neither bfloat16 nor asynchronous copies."""
FARTHEST = 2**30
"""No token is this far from another. Kernels subtract the window from positions in 32 bits, which a wider one wraps."""


class Call(NamedTuple):
    """One call of attention: its results, and a value for every argument that some kernel of it has."""

    out: torch.Tensor
    lse: torch.Tensor
    tiles: Tiles
    values: dict[str, Any]

    def launch(self, kernel: Any, **more: Any) -> None:
        """Runs a kernel over all tiles of rows and all KV heads; ``more``: arguments of this kernel alone.

        Tiles are on grid x, which may have 2³¹ − 1 programs; y and z end at 65,535. How many there are is an upper
        bound that needs no look at the lengths (`attention_tiles.locate`).
        """
        if not self.empty():
            num_tiles = self.out.shape[0] * self.values["GROUP"] // self.tiles.block_m + self.values["batch"]
            self.run(kernel, (num_tiles, self.values["k"].shape[1]), **more)

    def empty(self) -> bool:
        """Whether there is no query, or no sequence to own one: then nothing is launched."""
        return not self.lse.numel() or not self.values["batch"]

    def run(self, kernel: Any, grid: tuple[int, ...], **more: Any) -> None:
        """Runs a kernel on a grid of its own; it is given the arguments that it names."""
        values = self.values | more
        named = {name: values[name] for name in kernel.arg_names}
        kernel[grid](**named, num_warps=self.tiles.num_warps, num_stages=self.tiles.num_stages)


def refusal_of_heads(head_dim: int, dtype: torch.dtype, device: torch.device) -> str:
    """Why attention of such heads cannot run there; empty if it can."""
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        return f"head_dim={head_dim}, and it takes 1 to {MAX_HEAD_DIM}"
    if dtype not in FLOATS:
        return f"{dtype}, and it takes float16, bfloat16 and float32"
    if reason := cannot_run(device):
        return reason
    arch = architecture(device)
    if arch is not None and arch < LEAST_CAPABILITY:
        return f"a GPU of compute capability {arch / 10}, and it takes {LEAST_CAPABILITY / 10} and newer"
    return ""


def refusal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    sinks: torch.Tensor | None,
) -> str:
    """Why these tensors cannot be taken; empty if they can. Values on the device (the lengths) are trusted."""
    fit = q.ndim == k.ndim == 3 and k.shape == v.shape and k.shape[2] == q.shape[2]
    if not fit or not k.shape[1] or q.shape[1] % k.shape[1]:
        return (
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: q must be [total_q, num_heads, head_dim], k and "
            "v [total_k, num_kv_heads, head_dim], and num_kv_heads divide num_heads"
        )
    if reason := refusal_of_heads(q.shape[2], q.dtype, q.device) or strange(q=q, k=k, v=v):
        return reason
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            return f"{name} is {x.dtype} on {x.device} and q is {q.dtype} on {q.device}; they must be alike"
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        right = cu.dtype == torch.int32 and cu.device == q.device and cu.is_contiguous()
        if not right or cu.ndim != 1 or not cu.shape[0] or cu.shape != cu_seqlens_q.shape:
            return f"{name} must be contiguous int32 [batch + 1] on {q.device}, alike for q and k"
    return refusal_of_sinks(sinks, q)


def architecture(device: torch.device) -> int | None:
    """Compute capability times ten, 90 for Hopper; None where kernels are interpreted."""
    if interpreted():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def padded_dim(head_dim: int) -> int:
    """The head size as a power of two, at least the 16 that a matrix product needs."""
    return max(16, 1 << (head_dim - 1).bit_length())


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    config: Tiles | None,
    descriptors: bool = False,
) -> Call:
    """Raises ValueError for what the kernels do not take."""
    require("attention", refusal(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks))
    num_tokens, num_heads, head_dim = q.shape
    padded = padded_dim(head_dim)
    chosen = config or tiles(architecture(q.device), padded, q.element_size(), descriptors, window is not None)
    out = q.new_empty(q.shape)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    values: dict[str, Any] = {
        **{"q": q, "k": k, "v": v, "out": out, "lse": lse, "cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k, "sinks": sinks},
        **score_values(q, k.shape[1], scale, causal, window, softcap, sinks),
        **tile_values(chosen),
        "batch": cu_seqlens_q.shape[0] - 1,
        "DESCRIPTORS": descriptors,
    }
    for name, x in (("q", q), ("k", k), ("v", v), ("o", out)):
        values[f"stride_{name}t"], values[f"stride_{name}h"] = x.stride()[:2]
    return Call(out, lse, chosen, values)


def score_values(
    q: torch.Tensor,
    num_kv_heads: int,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> dict[str, Any]:
    """Arguments that say what heads there are and how they score. Raises ValueError for numbers out of range."""
    for name, number in (("scale", scale), ("window", window), ("softcap", softcap)):
        if number is not None and not (number > 0 and math.isfinite(number)):
            raise ValueError(f"{name}={number} must be positive and finite")
    return {
        "num_heads": q.shape[1],
        "window": min(window or 0, FARTHEST),
        # exp2 of a score (softcapped, if it is) times this is exp of the true score.
        "to_log2": LOG2_E if softcap else scale * LOG2_E,
        "slope": 2 * LOG2_E * scale / softcap if softcap else 0.0,
        "cap": softcap or 0.0,
        "GROUP": q.shape[1] // num_kv_heads,
        "HEAD_DIM": q.shape[2],
        "PADDED": padded_dim(q.shape[2]),
        "CAUSAL": causal,
        "HAS_WINDOW": window is not None,
        "HAS_CAP": softcap is not None,
        "HAS_SINKS": sinks is not None,
        # Products of float32 in full, not in the tf32 that Triton takes by itself.
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def tile_values(chosen: Tiles) -> dict[str, Any]:
    return {"BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n}


def refusal_of_sinks(sinks: torch.Tensor | None, q: torch.Tensor) -> str:
    """Why sinks do not go with these queries; empty if they do."""
    if sinks is not None:
        right = sinks.dtype == torch.float32 and sinks.device == q.device and sinks.is_contiguous()
        if not right or sinks.shape != (q.shape[1],):
            return f"sinks must be contiguous float32 [num_heads={q.shape[1]}] on {q.device}"
    return ""
