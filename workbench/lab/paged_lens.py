"""Paged attention under the lens: one decode step over scattered blocks, split, merged, and with a head in common.

Kernels are interpreted where there is no GPU, and give the same results where they are compiled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import kernels
from kernels.triton import paged_attention as kernel
from kernels.triton.cascade import SharedHead, cascade, cascade_plan, shared_heads
from kernels.triton.interpreter import faithful
from kernels.triton.paged_call import Pages, plan_for
from kernels.triton.paged_plan import Plan
from workbench.errors import UsageError


class PagedStep(NamedTuple):
    """One token of each request is new; all of a request's keys and values lie in its blocks."""

    q: torch.Tensor  # [batch, num_heads, head_dim]
    cache: torch.Tensor  # [num_blocks, block_size, 2, num_kv_heads, head_dim]
    tables: torch.Tensor  # [batch, max_blocks] int64
    query_start: list[int]
    seq_lens: list[int]

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    @property
    def block_size(self) -> int:
        return int(self.cache.shape[1])

    def only(self, request: int) -> PagedStep:
        """The same step with one of its requests alone."""
        one = slice(request, request + 1)
        return PagedStep(self.q[one], self.cache, self.tables[one], [0, 1], self.seq_lens[one])


class State(NamedTuple):
    """What a part of the keys came to: a result, and the log-sum-exp that says how much it weighs."""

    out: torch.Tensor  # [num_heads, head_dim]
    lse: torch.Tensor  # [num_heads], natural logarithm


def paged_step(
    seq_lens: Sequence[int],
    *,
    block_size: int = 16,
    shared: int = 0,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedStep:
    """Random numbers, the same on every machine, in blocks in random order. The first ``shared`` tokens, whole blocks,
    are the same ones for all requests. Raises UsageError for others."""
    if shared % block_size or shared >= min(seq_lens):
        raise UsageError(f"shared={shared}: give whole blocks of {block_size}, fewer tokens than {min(seq_lens)}")
    head, needed = shared // block_size, [-(-n // block_size) for n in seq_lens]
    count = head + sum(blocks - head for blocks in needed)
    free = random.Random(seed).sample(range(count), count)
    common = [free.pop() for _ in range(head)]
    owned = [common + [free.pop() for _ in range(blocks - head)] for blocks in needed]
    tables = torch.tensor([table + table[:1] * (max(needed) - len(table)) for table in owned])
    draw = torch.Generator().manual_seed(seed)
    shapes = ((len(needed), num_heads, head_dim), (count, block_size, 2, num_kv_heads, head_dim))
    q, cache = (torch.randn(shape, generator=draw).to(dtype).to(device) for shape in shapes)
    return PagedStep(q, cache, tables.to(device), list(range(len(needed) + 1)), list(seq_lens))


def by_definition(step: PagedStep) -> torch.Tensor:
    """In float64 where the step's numbers are float32 or less."""
    wide = step._replace(q=step.q.double(), cache=step.cache.double())
    return kernels.paged_attention(*wide, scale=step.scale, maker="reference")


def plan_of(step: PagedStep, **how: int) -> Plan:
    """``num_sms``: even shares for so many multiprocessors; ``split_size``: keys of a fixed split."""
    return plan_for(step.q, step.cache, step.tables, step.query_start, step.seq_lens, **how)


def attended(step: PagedStep, **how: int) -> torch.Tensor:
    """By the Triton kernel, split as `plan_of` says."""
    with faithful():
        return kernel.attend(step.q, step.cache, step.tables, plan_of(step, **how), scale=step.scale)


def split_states(step: PagedStep, split_size: int) -> tuple[list[State], torch.Tensor]:
    """What each split of the one request came to, as the kernel hands it to its merge, and the merged result
    ``[num_heads, head_dim]``. Raises UsageError for more requests and for a request of a single split."""
    count = -(-step.seq_lens[0] // split_size)
    if len(step.seq_lens) > 1 or count < 2:
        raise UsageError(f"{len(step.seq_lens)} requests in {count} splits: give one request, longer than a split")
    own, found = kernel.merge_splits, list[State]()

    def watched(partial: torch.Tensor, partial_lse: torch.Tensor, **values: Any) -> None:
        found.extend(State(partial[s, 0].clone(), partial_lse[s, 0] * math.log(2)) for s in range(count))
        own(partial, partial_lse, **values)

    kernel.merge_splits = watched
    try:
        out = attended(step, split_size=split_size)
    finally:
        kernel.merge_splits = own
    return found, out[0]


def heads_of(step: PagedStep, least_requests: int = 2, least_tokens: int = 1) -> list[SharedHead]:
    """Who shares a head, found in the block tables as the engine finds it."""
    tables = [table[: -(-n // step.block_size)] for table, n in zip(step.tables.tolist(), step.seq_lens, strict=True)]
    limits = {"least_requests": least_requests, "least_tokens": least_tokens}
    return shared_heads(tables, step.query_start, step.seq_lens, step.block_size, **limits)


def cascaded(step: PagedStep, heads: Sequence[SharedHead]) -> torch.Tensor:
    """By the Triton kernels, each head attended once for all that share it."""
    pages = Pages(step.q.shape[1], step.cache.shape[3], step.q.shape[2], step.q.dtype, step.q.device)
    plan = cascade_plan(pages, step.tables, step.block_size, step.query_start, step.seq_lens, heads)
    with faithful():
        return cascade(step.q, step.cache, plan, scale=step.scale)


def same_bits_alone(step: PagedStep, **how: int) -> list[bool]:
    """For each request: whether its result alone has the same bits as in the batch."""
    together = attended(step, **how)
    return [torch.equal(together[b], attended(step.only(b), **how)[0]) for b in range(len(step.seq_lens))]


def against_one_piece(block_sizes: Sequence[int], length: int, device: str = "cpu") -> dict[int, float]:
    """How many times longer this machine's own kernel takes over one request in scattered blocks of each size than in
    a single block: C++ on a CPU, Triton on a GPU. 8 heads of 64 numbers, float32."""
    from workbench.measure.timing import compare

    calls = {}
    for size in (length, *block_sizes):
        one = paged_step([length], block_size=size, num_heads=8, num_kv_heads=8, head_dim=64, device=device)
        calls[str(size)] = lambda one=one: kernels.paged_attention(*one, scale=one.scale)
    timed = compare(calls, device=torch.device(device), repeats=15, min_seconds=0.002)
    return {size: timed.ratio(str(size), str(length)) for size in block_sizes}


def weights_of(states: Sequence[State], head: int = 0) -> list[float]:
    """What each part weighs in the merged result of a head; together 1."""
    return [float(weight) for weight in torch.stack([state.lse[head] for state in states]).softmax(0)]
