"""Paged attention in C++; see `paged_attention.cpp` for how and `kernels.reference.paged_attention` for what."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.cpu.build import cannot_run, library

LANES = 8
MOST_ROWS = 128
"""Heads that may share a KV head: they are computed together."""


def refusal(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> str:
    """Why this kernel cannot compute such heads; empty if it can."""
    if (dtype, cache_dtype) != (torch.float32, torch.float32):
        return f"queries are {dtype} and the cache {cache_dtype}, and it computes in float32 only"
    if head_dim % LANES:
        return f"head_dim={head_dim} is not a multiple of {LANES}"
    if num_heads // num_kv_heads > MOST_ROWS:
        return f"{num_heads // num_kv_heads} query heads share a KV head, and it takes at most {MOST_ROWS}"
    return ""


def suits(q: torch.Tensor, cache: torch.Tensor) -> bool:
    """Whether it can compute these tensors here."""
    here = q.device.type == "cpu" and not refusal(q.shape[1], cache.shape[3], q.shape[2], q.dtype, cache.dtype)
    return here and not cannot_run()


def paged_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """As `kernels.reference.paged_attention`; lists may also come as int32 tensors, which saves a copy in each layer.

    Raises ValueError for heads it cannot compute (`refusal`) and CannotBuild where there is no compiler.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = cache.shape[1], cache.shape[3]
    if reason := refusal(num_heads, num_kv_heads, head_dim, q.dtype, cache.dtype):
        raise ValueError(f"paged_attention on a CPU: {reason}; use maker='reference'")
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    if not cache.is_contiguous() or block_tables.dtype != torch.int64 or block_tables.stride(1) != 1:
        raise ValueError("paged_attention on a CPU wants a contiguous cache and int64 block tables")
    starts, lengths = _int32(query_start), _int32(seq_lens)
    output = torch.empty(q.shape)
    _function()(
        q.data_ptr(), q.stride(0), cache.data_ptr(), block_tables.data_ptr(), block_tables.stride(0),
        starts.data_ptr(), lengths.data_ptr(), len(lengths), num_heads, num_kv_heads, head_dim, block_size,
        window or 0, scale, output.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return output


def _int32(numbers: list[int] | torch.Tensor) -> torch.Tensor:
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers, dtype=torch.int32)


@functools.cache
def _function() -> Callable[..., Any]:
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    function = library().paged_attention
    function.argtypes = [
        pointer, long, pointer, pointer, long, pointer, pointer, *[number] * 6, ctypes.c_float, pointer, number,
    ]  # fmt: skip
    function.restype = None
    return function
