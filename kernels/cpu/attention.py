"""Paged attention in C++; see `attention.cpp` for how and `kernels.reference.paged_attention` for what."""

from __future__ import annotations

import weakref

import torch

from kernels.cpu import native
from kernels.cpu.build import cannot_run

LANES = 8
CACHE_TYPES = (torch.float32, torch.float16)


def refusal(head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> str:
    """Why this kernel cannot compute such heads; empty if it can."""
    if dtype != torch.float32 or cache_dtype not in CACHE_TYPES:
        return f"queries are {dtype} and the cache {cache_dtype}, and it takes float32 with float32 or float16"
    if head_dim % LANES:
        return f"head_dim={head_dim} is not a multiple of {LANES}"
    return ""


def suits(q: torch.Tensor, cache: torch.Tensor) -> bool:
    """Whether it can compute these tensors here."""
    here = q.device.type == "cpu" and not refusal(q.shape[2], q.dtype, cache.dtype)
    return here and not cannot_run()


class Plan:
    """How a step's attention is cut into pieces: the same for all layers that have the same heads and window."""

    def __init__(self, num_requests: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None) -> None:
        self.num_requests = num_requests
        self.heads = (num_heads, num_kv_heads, head_dim)
        self.window = window
        self.handle: int = native.function("attention_plan_new", "", "p")()
        weakref.finalize(self, native.function("attention_plan_free", "p"), self.handle)


def make_plan(
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
) -> Plan:
    """A plan for requests given by int32 tensors, ``[batch + 1]`` and ``[batch]``.

    On a tape the tensors are read anew at each replay, so their values may change in between, but not their number.
    Raises ValueError for other tensors and CannotBuild where there is no compiler.
    """
    for name, tensor, size in (("query_start", query_start, len(seq_lens) + 1), ("seq_lens", seq_lens, len(seq_lens))):
        if tensor.dtype != torch.int32 or not tensor.is_contiguous() or len(tensor) != size:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be contiguous int32 [{size}]")
    plan = Plan(len(seq_lens), num_heads, num_kv_heads, head_dim, window)
    native.call(
        "attention_plan", "pppiiiii",
        plan.handle, query_start, seq_lens, len(seq_lens), num_heads, num_kv_heads, head_dim, window or 0,
    )  # fmt: skip
    native.hold(plan, query_start, seq_lens)
    return plan


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
    """As `kernels.reference.paged_attention`; lists may also come as int32 tensors. Raises like `attend`."""
    num_heads, head_dim = q.shape[1:]
    plan = make_plan(_int32(query_start), _int32(seq_lens), num_heads, cache.shape[3], head_dim, window)
    return attend(q, cache, block_tables, plan, scale)


def attend(q: torch.Tensor, cache: torch.Tensor, block_tables: torch.Tensor, plan: Plan, scale: float) -> torch.Tensor:
    """`paged_attention` with a plan that was made before.

    Raises ValueError for heads it cannot compute (`refusal`), for a plan of other heads or of another number of
    requests, and CannotBuild where there is no compiler.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = cache.shape[1], cache.shape[3]
    if reason := refusal(head_dim, q.dtype, cache.dtype):
        raise ValueError(f"paged_attention on a CPU: {reason}; use maker='reference'")
    if (plan.num_requests, plan.heads) != (len(block_tables), (num_heads, num_kv_heads, head_dim)):
        made, given = f"{plan.num_requests} requests and heads {plan.heads}", (num_heads, num_kv_heads, head_dim)
        raise ValueError(f"the plan is for {made}, not for {len(block_tables)} and {given}; make one for these")
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        if native.recorded() is not None:
            raise ValueError("queries are copied once, not at each replay; record heads that lie side by side")
        q = q.contiguous()
    if not cache.is_contiguous() or block_tables.dtype != torch.int64 or block_tables.stride(1) != 1:
        raise ValueError("paged_attention on a CPU wants a contiguous cache and int64 block tables")
    output = native.empty("attention", tuple(q.shape))
    native.call(
        "paged_attention", "pslpisliiiiifp",
        plan.handle, q, q.stride(0), cache, cache.dtype == torch.float16, block_tables, block_tables.stride(0),
        num_heads, num_kv_heads, head_dim, block_size, plan.window or 0, scale, output,
    )  # fmt: skip
    native.hold(plan, q, block_tables)
    return output


def _int32(numbers: list[int] | torch.Tensor) -> torch.Tensor:
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers, dtype=torch.int32)
