"""The operations between a model's products, each as torch operations one after the other and as one kernel: the same
numbers in both ways, ready to be compared, counted and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import kernels
from kernels.triton import launch
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

    def kernel_bytes(self) -> int | None:
        """What the fused kernel moves, counted by addresses where Triton interprets it; None where it does not."""
        if self.maker != "triton" or not launch.interpreted():
            return None
        from kernels.triton import traffic
        from kernels.triton.interpreter import faithful

        with faithful(), traffic.counting() as launches:
            self.fused()
        return sum(one.read + one.written for one in launches)

    def timed(self, repeats: int = 7, min_seconds: float = 0.0) -> Comparison:
        """Both ways in turn."""
        device = self.apart().device.type
        ways = {"apart": self.apart, "fused": self.fused}
        return compare(ways, device=device, repeats=repeats, min_seconds=min_seconds)


def fusions(
    config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str | None = None
) -> dict[str, Pair]:
    """Norm with residual, RoPE with cache write, SiLU · mul, softmax and a product with its epilogue, as wide as in a
    model, on random numbers.

    ``maker``: of the fused kernels; default: who makes the engine's on this device. An operation of which it makes none
    is left out, or torch's own kernel is taken if it has one.
    """
    maker = maker or ("triton" if device == "cuda" else "cpu")
    return {
        pair.counted.name: pair
        for op, make in _PAIRS.items()
        if (pair := make(config, tokens, device, dtype, maker if maker in kernels.available(op) else ""))
    }


def _norm(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str) -> Pair | None:
    x, stream = (_random((tokens, config.hidden_size), device, dtype, seed) for seed in (1, 2))
    weight, eps = _random((config.hidden_size,), device, dtype, 3), config.rms_norm_eps
    streams = stream.clone(), stream.clone()

    def apart() -> torch.Tensor:
        total = streams[0].add_(x)
        mean = total.square().mean(-1, keepdim=True)
        return total * torch.rsqrt(mean + eps) * weight

    def fused() -> torch.Tensor:
        return kernels.rms_norm(x, weight, eps, streams[1], maker=maker)

    return Pair(fusion.rms_norm(tokens, config.hidden_size, dtype.itemsize), apart, fused, maker) if maker else None


def _rope(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str) -> Pair | None:
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
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


def _silu(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str) -> Pair | None:
    width = config.intermediate_size
    gate_up = _random((tokens, 2 * width), device, dtype, 5)

    def apart() -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def fused() -> torch.Tensor:
        return kernels.silu_mul(gate_up, maker=maker)

    return Pair(fusion.silu_mul(tokens, width, dtype.itemsize), apart, fused, maker) if maker else None


def _softmax(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str) -> Pair | None:
    """Rows as wide as the model: no step of the engine has this operation alone."""
    x = _random((tokens, config.hidden_size), device, dtype, 6)

    def apart() -> torch.Tensor:
        numerators = (x - x.amax(-1, keepdim=True)).exp()
        return numerators / numerators.sum(-1, keepdim=True)

    def fused() -> torch.Tensor:
        return kernels.softmax(x, maker=maker) if maker else x.softmax(-1)

    rungs = fusion.softmax(tokens, config.hidden_size, dtype.itemsize)
    return Pair(Fusion("softmax", rungs["naive"], rungs["fused"]), apart, fused, maker or TORCH)


def _matmul(config: ModelConfig, tokens: int, device: str, dtype: torch.dtype, maker: str) -> Pair | None:
    """From the model's width to that of its MLP, with a bias and SiLU."""
    k, n = config.hidden_size, config.intermediate_size
    a, b, bias = (_random(shape, device, dtype, 7) for shape in ((tokens, k), (k, n), (n,)))

    def apart() -> torch.Tensor:
        return torch.nn.functional.silu(a @ b + bias)

    def fused() -> torch.Tensor:
        return kernels.matmul(a, b, bias, "silu", maker=maker)

    return Pair(fusion.matmul(tokens, n, k, dtype.itemsize), apart, fused, maker) if maker else None


_PAIRS: dict[str, Callable[[ModelConfig, int, str, torch.dtype, str], Pair | None]] = {
    "rms_norm": _norm,
    "rope_and_write": _rope,
    "silu_mul": _silu,
    "softmax": _softmax,
    "matmul": _matmul,
}


def layer_bytes(config: ModelConfig, tokens: int, size: int = 2) -> dict[str, tuple[int, int]]:
    """{part of a layer: bytes that it moves in a step of so many tokens, apart and fused}; ``size``: of a number.

    A product reads its weights and its input and writes its result, in both ways. Attention itself is left out.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    qkv, attended = (heads + 2 * kv_heads) * head_dim, heads * head_dim
    products = ((hidden, qkv), (attended, hidden), (hidden, 2 * inner), (inner, hidden))
    weights = sum(rows * columns for rows, columns in products) * size
    results = tokens * sum(rows + columns for rows, columns in products) * size
    norm, silu = fusion.rms_norm(tokens, hidden, size), fusion.silu_mul(tokens, inner, size)
    rope = fusion.rope_and_write(tokens, heads, kv_heads, head_dim, size)
    return {
        "weights": (weights, weights),
        "products' inputs and results": (results, results),
        "two norms with residual": (2 * norm.apart_bytes, 2 * norm.fused_bytes),
        rope.name: (rope.apart_bytes, rope.fused_bytes),
        silu.name: (silu.apart_bytes, silu.fused_bytes),
    }


def _random(shape: tuple[int, ...], device: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(device, dtype)
