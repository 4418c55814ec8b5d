"""Cascade attention: a head that several requests share is read once for all of them (FlashInfer, Ye et al. 2024).

Requests that begin with the same tokens hold the same blocks (prefix caching). Read by each of them apart, those blocks
come from memory or the L2 cache once a request. Here the queries of all members are attended together to their common
head, as one request without a causal mask, for the head lies before them all; then each is attended to what follows its
head; and the two states are merged by their log-sum-exps. In a head of N tokens shared by n requests that saves
``(n − 1) · N`` tokens' keys and values, and turns n narrow products into a wide one. It costs a second launch, partial
results in float32, and a merge: short heads and small groups do not pay.

A state merged in another order has other last bits, so results depend on who shares; a batch-invariant engine does not
use this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from kernels.triton.merge_states import merge_states
from kernels.triton.paged_attention import attend
from kernels.triton.paged_call import Pages
from kernels.triton.paged_plan import Bounds, Plan, bounds_of


class SharedHead(NamedTuple):
    """Requests of a batch, by number, whose block tables begin with the same ``num_blocks`` blocks."""

    requests: tuple[int, ...]
    num_blocks: int


class CascadePlan(NamedTuple):
    """What a step's layers have in common: who is attended where."""

    rows: torch.Tensor  # [rows of members] int64: their queries among all
    heads: Plan  # one request for each shared head, of its members' queries
    head_tables: torch.Tensor  # [heads, max_blocks]
    rest: Plan  # every request, of what follows its head
    rest_tables: torch.Tensor  # [batch, max_blocks]


def shared_heads(
    tables: Sequence[Sequence[int]],
    query_start: Sequence[int],
    seq_lens: Sequence[int],
    block_size: int,
    *,
    least_requests: int = 4,
    least_tokens: int = 256,
) -> list[SharedHead]:
    """Groups of at least so many requests that share a head of at least so many tokens, by their block tables.

    A head ends before the first query of each member, which then sees all of it. Where requests part, either all share
    what lies before, or those on each side share more: whatever saves the most reading. Nobody is in two groups.
    """
    least_blocks = max(1, -(-least_tokens // block_size))
    room = [max(0, n - (query_start[b + 1] - query_start[b])) // block_size for b, n in enumerate(seq_lens)]
    # By first block, so that tables of requests who share nothing, which are most, are not looked into.
    asking: dict[int, list[int]] = {}
    for b, blocks in enumerate(room):
        if blocks >= least_blocks and query_start[b + 1] > query_start[b]:
            asking.setdefault(tables[b][0], []).append(b)
    found: list[SharedHead] = []
    for members in asking.values():
        if len(members) >= least_requests:
            found += _split({b: tuple(tables[b][: room[b]]) for b in members}, members, least_requests, least_blocks)
    return found


def _split(
    heads: dict[int, tuple[int, ...]], asking: list[int], least_requests: int, least_blocks: int
) -> list[SharedHead]:
    """The best heads of some members. A list and no recursion: a thousand requests may part one after the other."""
    found: list[tuple[list[int], int, int]] = []  # members, blocks in common, who they are a branch of
    waiting = [(asking, -1)]
    for members, parent in waiting:
        if len(members) < least_requests:
            continue
        # What the least and the greatest agree in, all agree in.
        least, greatest = (choose(heads[b] for b in members) for choose in (min, max))
        depth = next((i for i, (x, y) in enumerate(zip(least, greatest, strict=False)) if x != y), len(least))
        branches: dict[int, list[int]] = {}
        for b in members:
            if len(heads[b]) > depth:
                branches.setdefault(heads[b][depth], []).append(b)
        waiting += [(branch, len(found)) for branch in branches.values()]
        found.append((members, depth, parent))
    best: list[list[SharedHead]] = [[] for _ in range(len(found) + 1)]  # the last: of nobody's branch, the answer
    for number, (members, depth, parent) in reversed(list(enumerate(found))):
        together = [SharedHead(tuple(members), depth)] if depth >= least_blocks else []
        best[parent] = max(together, best[number], key=_saved) + best[parent]
    return best[-1]


def _saved(shared: Sequence[SharedHead]) -> int:
    """Blocks that need not be read again."""
    return sum((len(requests) - 1) * num_blocks for requests, num_blocks in shared)


def cascade_plan(
    pages: Pages,
    block_tables: torch.Tensor,
    block_size: int,
    query_start: Sequence[int],
    seq_lens: Sequence[int],
    shared: Sequence[SharedHead],
    num_sms: int | None = None,
) -> CascadePlan:
    """Raises ValueError for heads that are none: empty, longer than what all of a member's queries see, overlapping."""
    device = block_tables.device
    skipped = [0] * len(seq_lens)
    rows: list[int] = []
    starts, lengths = [0], []
    for requests, num_blocks in shared:
        for b in requests:
            begin, end = query_start[b], query_start[b + 1]
            seen = seq_lens[b] - (end - begin)
            if not 0 < num_blocks * block_size <= seen or skipped[b]:
                raise ValueError(
                    f"request {b}: a head of {num_blocks} blocks of {block_size} tokens; its queries all see {seen} "
                    f"tokens, and it {'is in another head already' if skipped[b] else 'may be in one head'}"
                )
            skipped[b] = num_blocks
            rows += range(begin, end)
        starts.append(len(rows))
        lengths.append(num_blocks * block_size)
    rest_lens = [n - skip * block_size for n, skip in zip(seq_lens, skipped, strict=True)]
    first = torch.tensor([requests[0] for requests, _ in shared], dtype=torch.int64, device=device)
    columns = torch.arange(block_tables.shape[1], device=device) + torch.tensor(skipped, device=device)[:, None]
    rest_tables = block_tables.gather(1, columns.clamp_(max=block_tables.shape[1] - 1))
    # All queries of a group belong to one request, however many they are: its keys are split, its tiles are wide.
    widest = max((end - begin for begin, end in pairwise(starts)), default=0)
    return CascadePlan(
        torch.tensor(rows, dtype=torch.int64, device=device),
        pages.plan(
            _int32(starts, device), _int32(lengths, device), Bounds(widest, False, max(lengths, default=0)),
            num_sms=num_sms,
        ),
        block_tables[first],
        pages.plan(
            _int32(query_start, device), _int32(rest_lens, device), bounds_of(query_start, rest_lens, pages.group),
            num_sms=num_sms,
        ),
        rest_tables,
    )  # fmt: skip


def cascade(
    q: torch.Tensor,
    cache: torch.Tensor,
    plan: CascadePlan,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`paged_attention` without a window, heads of `cascade_plan` read once. Sinks are counted with what follows."""
    num_tokens, num_heads, _ = q.shape
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    attend(
        q, cache, plan.rest_tables, plan.rest, scale=scale, softcap=softcap, sinks=sinks, out=out, lse=lse
    )  # fmt: skip
    members = q.index_select(0, plan.rows)
    head, head_lse = torch.empty_like(members, dtype=torch.float32), lse.new_empty(len(members), num_heads)
    attend(
        members, cache, plan.head_tables, plan.heads,
        scale=scale, causal=False, softcap=softcap, out=head, lse=head_lse,
    )  # fmt: skip
    merged, _ = merge_states(head, head_lse, out.index_select(0, plan.rows), lse.index_select(0, plan.rows))
    return out.index_copy_(0, plan.rows, merged).to(q.dtype)


def _int32(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)
