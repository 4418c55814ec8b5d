"""Admission: what can never run, what may not queue, and when a preempted request may come back."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.checks import shown
from workbench.config import EngineConfig
from workbench.engine.request import Request, Status
from workbench.errors import UsageError, WorkbenchError
from workbench.kv.pool import BlockPool

MAX_PRIORITY = 1_000_000
"""Far beyond any use, and small enough that a moment of waiting still counts beside it."""


class QueueFull(WorkbenchError):
    """A request that was refused because too many wait already; it may be sent again later."""

    reason = "queue_limit"


def tokens_at_end(config: EngineConfig, pool: BlockPool, num_prompt_tokens: int, max_tokens: int | None) -> int:
    """Tokens at which a request ends. Raises UsageError for a request that could never run to that end."""
    max_model_len = config.max_model_len or pool.capacity
    if num_prompt_tokens == 0:
        raise UsageError("the prompt is empty: there is no token to compute; give at least one token")
    if num_prompt_tokens >= max_model_len:
        raise UsageError(
            f"the prompt has {num_prompt_tokens} tokens and max_model_len={max_model_len} leaves no room for "
            "an answer: shorten it or raise max_model_len"
        )
    # The KV of the last token is never needed, so one token more than the pool's capacity fits.
    limit = min(max_model_len, pool.capacity + 1)
    total = limit if max_tokens is None else num_prompt_tokens + max_tokens
    if total > max_model_len:
        raise UsageError(
            f"{num_prompt_tokens} prompt tokens + max_tokens={max_tokens} are more than max_model_len="
            f"{max_model_len}: lower max_tokens (None means as far as the context goes) or raise max_model_len"
        )
    if total > limit or num_prompt_tokens > pool.capacity:
        raise UsageError(
            f"{num_prompt_tokens} prompt tokens + max_tokens={max_tokens} do not fit the KV pool of "
            f"{pool.num_blocks} blocks × {pool.block_size} tokens even alone: raise num_kv_blocks or "
            "lower max_tokens"
        )
    if not config.enable_chunked_prefill and num_prompt_tokens > config.max_num_batched_tokens:
        raise UsageError(
            f"the prompt has {num_prompt_tokens} tokens and without chunked prefill it must fit one step of "
            f"max_num_batched_tokens={config.max_num_batched_tokens}: raise that or set enable_chunked_prefill"
        )
    return total


def check_priority(config: EngineConfig, priority: int) -> None:
    """Raises UsageError for a priority out of range, or where priorities have no effect."""
    if abs(priority) > MAX_PRIORITY:
        raise UsageError(
            f"priority={shown(priority)} must lie from -{MAX_PRIORITY} to {MAX_PRIORITY}; the lower goes first"
        )
    if priority and config.scheduling_policy != "priority":
        raise UsageError(f"priority={priority} has no effect without scheduling_policy='priority': leave it out")


def check_queue(config: EngineConfig, num_waiting: int, num_more: int) -> None:
    """Raises QueueFull where ``num_more`` requests would make more than ``max_num_queued_reqs`` wait."""
    limit = config.max_num_queued_reqs
    if limit is not None and num_waiting + num_more > limit:
        raise QueueFull(
            f"{num_waiting} requests wait and max_num_queued_reqs={limit} leaves no room for {num_more} more: send "
            "them later or raise it"
        )


def growth(request: Request, behind: int, running: Sequence[Request], pool: BlockPool, budget: int, limit: int) -> int:
    """Blocks that those ahead of ``request`` may take before it has caught up, if ``behind`` of its tokens are left
    after this step and nobody joins meanwhile.

    With so many to spare, a request that comes back from a preemption is not sent away again before it has a token to
    show for it.
    """
    if behind == 0:
        return 0
    ahead = [other for other in running if other.status is Status.RUNNING and other.rank < request.rank]
    # Each step either spends the whole budget, one token at most on each decode, or gives the request all it may take.
    pace = budget - len(running)
    pending = sum(len(other.token_ids) - other.num_computed_tokens for other in ahead)
    steps = -(-(pending + behind) // pace) + -(-behind // limit) if pace > 0 else None
    blocks = 0
    for other in ahead:
        end = other.max_num_tokens - 1
        if steps is not None:
            end = min(end, len(other.token_ids) + steps)
        blocks += max(0, pool.blocks_for(end) - len(other.block_table))
    return blocks
