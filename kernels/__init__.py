"""The operations of a transformer step, each by several makers under one signature.

``reference`` is plain PyTorch and *is* the definition; the others must agree with it under the same tests. Every
operation takes ``maker="auto"|"reference"|"triton"|"cpu"``; ``auto`` takes the fastest maker there is for the device of
its tensors. This package imports nothing of ``workbench``, and Triton only when one of its kernels is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from kernels import reference
from kernels.cpu import attention as cpu_attention
from kernels.cpu import layers as cpu_layers
from kernels.cpu import linear as cpu_linear
from kernels.cpu import sampling as cpu_sampling
from kernels.cpu.build import cannot_run
from kernels.cpu.native import rows_together, suits, together
from kernels.reference.int4_tiles import Int4Tiles
from kernels.reference.weights import Weight
from kernels.triton import launch

MAKERS = ("reference", "triton", "cpu")
_OPERATIONS: dict[str, dict[str, Callable[..., Any] | str]] = {
    "embedding": {"reference": reference.embedding, "cpu": cpu_linear.embedding},
    "expanded_latent_attention": {"reference": reference.expanded_latent_attention, "triton": "expanded_latent"},
    "flash_attention": {"reference": reference.flash_attention, "triton": "flash_attention"},
    "linear": {"reference": reference.linear, "triton": "matmul", "cpu": cpu_linear.linear},
    "matmul": {"reference": reference.matmul, "triton": "matmul"},
    "merge_states": {"reference": reference.merge_states, "triton": "merge_states"},
    "rms_norm": {"reference": reference.rms_norm, "triton": "norm", "cpu": cpu_layers.rms_norm},
    "rotary_embedding": {"reference": reference.rotary_embedding},
    "rope_and_write": {"reference": reference.rope_and_write, "triton": "rope", "cpu": cpu_layers.rope_and_write},
    "silu_mul": {"reference": reference.silu_mul, "triton": "activation", "cpu": cpu_layers.silu_mul},
    "softmax": {"reference": reference.softmax, "triton": "softmax"},
    "w4a16_linear": {"reference": reference.w4a16_linear, "triton": "w4a16"},
    "write_kv": {"reference": reference.write_kv},
    "paged_attention": {
        "reference": reference.paged_attention,
        "triton": "paged_attention",
        "cpu": cpu_attention.paged_attention,
    },
    "paged_latent_attention": {"reference": reference.paged_latent_attention, "triton": "latent_attention"},
    "route": {"reference": reference.route},
    "sample": {"reference": reference.sample, "triton": "sampling", "cpu": cpu_sampling.sample},
}
"""A maker's function, or in which module of `kernels.triton` it stands under the operation's name."""


def operations() -> list[str]:
    """The names of all operations."""
    return list(_OPERATIONS)


def available(op: str) -> list[str]:
    """The makers of an operation that can run here. Raises ValueError for an unknown one."""
    if op not in _OPERATIONS:
        raise ValueError(f"unknown operation {op!r}; there are {', '.join(_OPERATIONS)}")
    runs = {"reference": lambda: True, "triton": launch.runs_here, "cpu": lambda: not cannot_run()}
    return [maker for maker in _OPERATIONS[op] if runs[maker]()]


def _maker(op: str, maker: str, on_cpu: bool = False, on_gpu: bool = False) -> Callable[..., Any]:
    """``on_cpu``, ``on_gpu``: whether the C++ or the Triton kernel can take this call, so that ``auto`` takes it."""
    if maker == "auto":
        maker = "triton" if on_gpu else "cpu" if on_cpu else "reference"
    if maker not in _OPERATIONS[op]:
        known = "is not built for it yet" if maker in MAKERS else f"is no maker; makers are auto, {', '.join(MAKERS)}"
        raise ValueError(f"{op}: maker {maker!r} {known}; there is {', '.join(_OPERATIONS[op])}")
    return _function(op, maker)


def _function(op: str, maker: str) -> Callable[..., Any]:
    made = _OPERATIONS[op][maker]
    if isinstance(made, str):
        made = getattr(import_module(f"kernels.triton.{made}"), op)
    return made


def _on_gpu(op: str, x: torch.Tensor, *others: Any) -> bool:
    """Whether x lies on a GPU and the Triton kernel has nothing against these arguments."""
    return launch.suits(x) and not import_module(f"kernels.triton.{_OPERATIONS[op]['triton']}").refusal(x, *others)


def embedding(weight: Weight, token_ids: torch.Tensor, *, maker: str = "auto") -> torch.Tensor:
    """See `kernels.reference.embedding`; the C++ kernel gives float32 whatever the weight is."""
    return _maker("embedding", maker, weight.data.device.type == "cpu" and not cannot_run())(weight, token_ids)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    maker: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.flash_attention`."""
    sequences = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    made = _maker("flash_attention", maker, on_gpu=_on_gpu("flash_attention", *sequences, sinks))
    return made(*sequences, scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks)


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, *, maker: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.merge_states`."""
    states = (out_a, lse_a, out_b, lse_b)
    return _maker("merge_states", maker, on_gpu=_on_gpu("merge_states", *states))(*states)


def linear(
    x: torch.Tensor,
    weight: Weight,
    bias: torch.Tensor | None = None,
    activation_bits: int = 16,
    *,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.linear`. On a GPU ``auto`` stays with the vendor's library, which torch calls."""
    return _maker("linear", maker, suits(x) if bias is None else suits(x, bias))(x, weight, bias, activation_bits)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    *,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.matmul`."""
    return _maker("matmul", maker, on_gpu=_on_gpu("matmul", a, b, bias, activation))(a, b, bias, activation)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    *,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.rms_norm`."""
    on_cpu = suits(x, weight) and rows_together(x) and together(weight, residual)
    made = _maker("rms_norm", maker, on_cpu, _on_gpu("rms_norm", x, weight, residual))
    return made(x, weight, eps, residual)


def rotary_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, *, maker: str = "auto"
) -> None:
    """See `kernels.reference.rotary_embedding`."""
    _maker("rotary_embedding", maker)(x, cos, sin, interleaved)


def silu_mul(gate_up: torch.Tensor, *, maker: str = "auto") -> torch.Tensor:
    """See `kernels.reference.silu_mul`."""
    return _maker("silu_mul", maker, suits(gate_up) and together(gate_up), _on_gpu("silu_mul", gate_up))(gate_up)


def softmax(x: torch.Tensor, *, maker: str = "auto") -> torch.Tensor:
    """See `kernels.reference.softmax`."""
    return _maker("softmax", maker, on_gpu=_on_gpu("softmax", x))(x)


def w4a16_linear(
    x: torch.Tensor, weight: Int4Tiles, bias: torch.Tensor | None = None, *, maker: str = "auto"
) -> torch.Tensor:
    """See `kernels.reference.w4a16_linear`."""
    return _maker("w4a16_linear", maker, on_gpu=_on_gpu("w4a16_linear", x, weight, bias))(x, weight, bias)


def rope_and_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    *,
    maker: str = "auto",
) -> None:
    """See `kernels.reference.rope_and_write`."""
    tensors = (qkv, positions, cos, sin, slots, cache, q_norm, k_norm)
    on_cpu = suits(qkv) and together(*tensors)
    _maker("rope_and_write", maker, on_cpu, _on_gpu("rope_and_write", *tensors))(*tensors, eps)


def write_kv(kv: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, *, maker: str = "auto") -> None:
    """See `kernels.reference.write_kv`."""
    _maker("write_kv", maker)(kv, cache, slots)


def paged_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    *,
    scale: float,
    window: int | None = None,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.paged_attention`. The makers ``cpu`` and ``triton`` also take int32 tensors for the two
    lists."""
    on_gpu = _on_gpu("paged_attention", q, cache, block_tables)
    made = _maker("paged_attention", maker, cpu_attention.suits(q, cache), on_gpu)
    return made(q, cache, block_tables, query_start, seq_lens, scale=scale, window=window)


def paged_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    *,
    rank: int,
    scale: float,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.paged_latent_attention`; ``triton`` also takes int32 tensors for the two lists."""
    made = _maker(
        "paged_latent_attention", maker, on_gpu=_on_gpu("paged_latent_attention", q, cache, block_tables, rank)
    )
    return made(q, cache, block_tables, query_start, seq_lens, rank=rank, scale=scale)


def expanded_latent_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int],
    seq_lens: list[int],
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    *,
    scale: float,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.expanded_latent_attention`."""
    tensors = (q, cache, block_tables, key_up, value_up)
    made = _maker("expanded_latent_attention", maker, on_gpu=_on_gpu("expanded_latent_attention", *tensors))
    return made(q, cache, block_tables, query_start, seq_lens, key_up, value_up, scale=scale)


def route(
    logits: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    experts_per_token: int,
    scoring: str = "softmax",
    num_groups: int = 1,
    groups_per_token: int = 1,
    group_best: int = 1,
    normalized: bool = False,
    scale: float = 1.0,
    maker: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.reference.route`."""
    return _maker("route", maker)(
        logits,
        correction,
        experts_per_token=experts_per_token,
        scoring=scoring,
        num_groups=num_groups,
        groups_per_token=groups_per_token,
        group_best=group_best,
        normalized=normalized,
        scale=scale,
    )


def sample(
    logits: torch.Tensor,
    temperature: list[float] | torch.Tensor,
    top_k: list[int] | torch.Tensor,
    top_p: list[float] | torch.Tensor,
    min_p: list[float] | torch.Tensor,
    u: list[float] | torch.Tensor,
    *,
    maker: str = "auto",
) -> torch.Tensor:
    """See `kernels.reference.sample`."""
    made = _maker("sample", maker, cpu_sampling.suits(logits), _on_gpu("sample", logits))
    return made(logits, temperature, top_k, top_p, min_p, u)
