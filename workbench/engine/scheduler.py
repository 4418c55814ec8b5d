"""Scheduler: which requests compute how many tokens in the next step, and why the others wait.

There is no prefill phase and no decode phase. Every request has tokens whose KV is not computed yet, and a step lets
some of them catch up: a new prompt by many tokens, a request in full flow by one. (vLLM V1 states it the same way.)
The scheduler is pure Python, reads no clock and draws no random number, so its plans can be replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice

from workbench.config import EngineConfig
from workbench.engine.request import Request, Status
from workbench.errors import UsageError
from workbench.kv.pool import BlockPool
from workbench.plan import Scheduled, Skipped, StepPlan, StepResult

MAX_SKIPPED_LISTED = 64
"""Waiting requests whose reason a plan lists. In first-come order all share the head's reason, and a plan must stay
linear in what is scheduled, not in the length of the queue."""


class Scheduler:
    """Continuous batching, first come first served, preemption by recomputation.

    ``running`` is ordered by admission. Running requests are served first, the oldest before the younger; what is left
    of the token budget goes to waiting requests. When blocks run out, the youngest running request gives its blocks
    back, returns to the front of the queue and computes its tokens again later. The oldest can therefore always go on,
    and since no request is admitted that could not run alone, everything finishes.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.pool = pool
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.chunk_limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.max_model_len = config.max_model_len or pool.capacity
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    def max_num_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens at which a request ends. Raises UsageError for a request that could never run to that end."""
        if num_prompt_tokens == 0:
            raise UsageError("the prompt is empty: there is no token to compute; give at least one token")
        if num_prompt_tokens >= self.max_model_len:
            raise UsageError(
                f"the prompt has {num_prompt_tokens} tokens and max_model_len={self.max_model_len} leaves no room for "
                "an answer: shorten it or raise max_model_len"
            )
        # The KV of the last token is never needed, so one token more than the pool's capacity fits.
        limit = min(self.max_model_len, self.pool.capacity + 1)
        total = limit if max_tokens is None else num_prompt_tokens + max_tokens
        if total > self.max_model_len:
            raise UsageError(
                f"{num_prompt_tokens} prompt tokens + max_tokens={max_tokens} are more than max_model_len="
                f"{self.max_model_len}: lower max_tokens (None means as far as the context goes) or raise max_model_len"
            )
        if total > limit or num_prompt_tokens > self.pool.capacity:
            raise UsageError(
                f"{num_prompt_tokens} prompt tokens + max_tokens={max_tokens} do not fit the KV pool of "
                f"{self.pool.num_blocks} blocks × {self.pool.block_size} tokens even alone: raise num_kv_blocks or "
                "lower max_tokens"
            )
        return total

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def plan(self) -> StepPlan:
        """Decides the next step and takes the blocks it needs."""
        plan = StepPlan(pool=self.pool, continues=any(request.num_computed_tokens for request in self.running))
        budget = self._serve_running(plan, self.max_num_batched_tokens)
        self._admit_waiting(plan, budget)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, text_stops: Collection[str] = ()) -> list[Request]:
        """Records what a step computed and sampled; returns the requests that ended with it.

        ``text_stops``: ids of requests whose text is complete with the sampled token (a stop string).
        """
        finished = []
        _keep_logprobs(plan, result)
        for item, token_id in zip(plan.scheduled, result.token_ids, strict=True):
            request = item.request
            assert isinstance(request, Request)
            if request.status is not Status.RUNNING:
                continue  # aborted while the step ran
            if (token_id is not None) != item.samples:
                raise RuntimeError(f"the runner returned {token_id!r} for {item}: one token where samples is set")
            request.num_computed_tokens += item.num_tokens
            if token_id is None:
                continue
            reason = request.append(token_id, request.request_id in text_stops)
            if reason is not None:
                self._close(request, reason)
                finished.append(request)
        if finished:
            self.running = [request for request in self.running if request.status is Status.RUNNING]
        return finished

    def abort(self, request: Request) -> None:
        """Ends a request in any state and gives its blocks back."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        self._close(request, "abort")

    def _serve_running(self, plan: StepPlan, budget: int) -> int:
        running, pool = self.running, self.pool
        index = 0
        while index < len(running):
            request = running[index]
            if budget == 0:
                plan.skipped.extend(Skipped(left.request_id, "budget") for left in running[index:])
                break
            num_tokens = min(len(request.token_ids) - request.num_computed_tokens, budget, self.chunk_limit)
            missing = pool.blocks_for(request.num_computed_tokens + num_tokens) - len(request.block_table)
            while missing > pool.num_free:
                victim = running.pop()
                self._preempt(victim, plan)
                if victim is request:
                    break
            else:
                if missing > 0:
                    pool.grow(request.request_id, missing)
                self._schedule(plan, request, num_tokens)
                budget -= num_tokens
            index += 1
        return budget

    def _admit_waiting(self, plan: StepPlan, budget: int) -> None:
        waiting, running, pool = self.waiting, self.running, self.pool
        index = 0
        while index < len(waiting):
            request = waiting[index]
            donor = self._donor(request)
            if donor is None and self._prompt_is_coming(request):
                plan.skipped.append(Skipped(request.request_id, "prefix_wait"))
                index += 1
                continue
            start = request.num_prompt_tokens - 1 if donor else request.num_computed_tokens
            shared = start // pool.block_size if donor else 0
            reason = None
            num_tokens = min(len(request.token_ids) - start, budget, self.chunk_limit)
            missing = pool.blocks_for(start + num_tokens) - shared
            if len(running) >= self.max_num_seqs:
                reason = "max_num_seqs"
            elif budget == 0:
                reason = "budget"
            elif plan.preempted or missing > pool.num_free:
                # After a preemption there is no room by definition: admitting now would only move the shortage.
                reason = "no_blocks"
            if reason is not None:
                left = islice(waiting, index, index + MAX_SKIPPED_LISTED)
                plan.skipped.extend(Skipped(r.request_id, reason) for r in left)
                return
            del waiting[index]
            running.append(request)
            request.status = Status.RUNNING
            request.block_table = pool.open(request.request_id)
            if donor:
                pool.share(request.request_id, donor.block_table[:shared])
            pool.grow(request.request_id, missing)
            if donor:
                request.num_computed_tokens = start
                if start % pool.block_size:
                    # Both will write into the block in which the prompt ends, so the fork gets a copy of its own.
                    plan.copies.append((donor.block_table[shared], request.block_table[shared]))
            self._schedule(plan, request, num_tokens)
            budget -= num_tokens

    def _donor(self, request: Request) -> Request | None:
        """An answer to the same prompt that has its KV but for the last token's, which every answer computes itself."""
        wanted = request.num_prompt_tokens - 1
        if wanted == 0:
            return None
        return next((r for r in request.group if r.status is Status.RUNNING and r.num_computed_tokens >= wanted), None)

    def _prompt_is_coming(self, request: Request) -> bool:
        """Whether another answer is computing the prompt just now, so that waiting is cheaper than doing it again."""
        return request.num_prompt_tokens > 1 and any(r.status is Status.RUNNING for r in request.group)

    def _schedule(self, plan: StepPlan, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        end = start + num_tokens
        samples = end == len(request.token_ids)
        if samples and num_tokens == 1 and start >= request.num_prompt_tokens:
            kind = "decode"
        elif start < request.recompute_until:
            kind = "recompute"
        else:
            kind = "prefill"
        plan.scheduled.append(Scheduled(request, start, num_tokens, kind, samples))

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        self.pool.release(request.request_id)
        request.block_table = []
        request.recompute_until = max(request.recompute_until, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = Status.WAITING
        self.waiting.appendleft(request)
        self.num_preemptions += 1
        plan.preempted.append(request.request_id)

    def _close(self, request: Request, reason: str) -> None:
        if request.request_id in self.pool.tables:
            self.pool.release(request.request_id)
        request.block_table = []
        request.status = Status.FINISHED
        request.finish_reason = reason


def _keep_logprobs(plan: StepPlan, result: StepResult) -> None:
    for item, found in zip(plan.scheduled, result.prompt_logprobs, strict=False):
        assert isinstance(item.request, Request)
        item.request.prompt_logprobs.extend(found)
    for item, logprobs in zip(plan.scheduled, result.logprobs, strict=False):
        assert isinstance(item.request, Request)
        if logprobs is not None and item.request.status is Status.RUNNING:
            item.request.logprobs.append(logprobs)
