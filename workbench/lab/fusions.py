"""The operations between a model's products, each as torch operations one after the other and as one kernel: the same
numbers in both ways, ready to be compared, counted and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import kernels
from workbench.measure import fusion, torch_traffic
from workbench.measure.fusion import Fusion
from workbench.measure.timing import Comparison, compare
from workbench.model.rope import rope_table

if TYPE_CHECKING:
    from workbench.model.config import ModelConfig

Run = Callable[[], torch.Tensor]
BLOCK_SIZE = 16
TORCH = "torch's own kernel"


@dataclass(frozen=True, slots=True)
class Pair:
    """One operation. ``apart`` and ``fused`` give the same tensor; what they change in place is the same too, and
    changes with every call."""

    counted: Fusion
    apart: Run
    fused: Run
    maker: str
    """Of the fused kernel: ``cpu``, ``triton``, or `TORCH`."""

    def torch_bytes(self) -> int:
        """What the torch operations of ``apart`` move, counted call by call."""
        with torch_traffic.counting() as calls:
            self.apart()
        return sum(call.read + call.written for call in calls)

    def timed(self, repeats: int = 7, min_seconds: float = 0.0) -> Comparison:
        """Both ways in turn."""
        device = self.apart().device.type
        ways = {"apart": self.apart, "fused": self.fused}
        return compare(ways, device=device, repeats=repeats, min_seconds=min_seconds)


def fusions(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype) -> dict[str, Pair]:
    """Norm with residual, RoPE with cache write, SiLU · mul and softmax, with the widths of a model, on random numbers.

    The fused kernel is what the engine takes on this device; where there is none (no compiler), one that torch has, or
    the operation is left out.
    """
    return {
        pair.counted.name: pair
        for make in (_norm, _rope, _silu, _softmax)
        if (pair := make(config, tokens, device, dtype)) is not None
    }


def _norm(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype) -> Pair | None:
    x, stream = (_random((tokens, config.hidden_size), device, dtype, seed) for seed in (1, 2))
    weight, eps, maker = _random((config.hidden_size,), device, dtype, 3), config.rms_norm_eps, _maker("rms_norm", device)
    streams = stream.clone(), stream.clone()

    def apart() -> torch.Tensor:
        total = streams[0].add_(x)
        mean = total.square().mean(-1, keepdim=True)
        return total * torch.rsqrt(mean + eps) * weight

    def fused() -> torch.Tensor:
        return kernels.rms_norm(x, weight, eps, streams[1], maker=maker)

    counted = fusion.rms_norm(tokens, config.hidden_size, dtype.itemsize)
    return Pair(counted, apart, fused, maker) if maker else None


def _rope(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype) -> Pair | None:
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    maker = _maker("rope_and_write", device)
    cos, sin = rope_table(config, tokens, torch.device(device))
    positions = torch.arange(tokens, device=device)
    slots = positions.flip(0).contiguous()  # any order will do, as long as none comes twice
    both = []
    for kind in ("reference", maker or "reference"):
        qkv = _random((tokens, (heads + 2 * kv_heads) * head_dim), device, dtype, 4)
        cache = torch.zeros(-(-tokens // BLOCK_SIZE), BLOCK_SIZE, 2, kv_heads, head_dim, device=device, dtype=dtype)
        both.append(_rope_run(qkv, positions, cos, sin, slots, cache, kind))
    counted = fusion.rope_and_write(tokens, heads, kv_heads, head_dim, dtype.itemsize)
    return Pair(counted, *both, maker) if maker else None


def _rope_run(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    maker: str,
) -> Run:
    def run() -> torch.Tensor:
        kernels.rope_and_write(qkv, positions, cos, sin, slots, cache, maker=maker)
        return cache

    return run


def _silu(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype) -> Pair | None:
    width, maker = config.intermediate_size, _maker("silu_mul", device)
    gate_up = _random((tokens, 2 * width), device, dtype, 5)

    def apart() -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def fused() -> torch.Tensor:
        return kernels.silu_mul(gate_up, maker=maker)

    return Pair(fusion.silu_mul(tokens, width, dtype.itemsize), apart, fused, maker) if maker else None


def _softmax(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype) -> Pair:
    """Rows as wide as the model: of a teaching size, as no step of the engine has this operation alone."""
    x, maker = _random((tokens, config.hidden_size), device, dtype, 6), _maker("softmax", device)

    def apart() -> torch.Tensor:
        numerators = (x - x.amax(-1, keepdim=True)).exp()
        return numerators / numerators.sum(-1, keepdim=True)

    def fused() -> torch.Tensor:
        return kernels.softmax(x, maker=maker) if maker else x.softmax(-1)

    rungs = fusion.softmax(tokens, config.hidden_size, dtype.itemsize)
    return Pair(Fusion("softmax", rungs["naive"], rungs["fused"]), apart, fused, maker or TORCH)


def _maker(op: str, device: str) -> str:
    """Who makes the fused kernel for tensors of this device; empty if nobody does."""
    wanted = "triton" if device == "cuda" else "cpu"
    return wanted if wanted in kernels.available(op) else ""


def _random(shape: tuple[int, ...], device: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(device, dtype)
