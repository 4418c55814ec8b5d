"""Scheduler: which requests compute how many tokens in the next step, and why the others wait.

There is no prefill phase and no decode phase. Every request has tokens whose KV is not computed yet, and a step lets
some of them catch up: a new prompt by many tokens, a request in full flow by one. (vLLM V1 states it the same way.)
The scheduler is pure Python, reads no clock and draws no random number, so its plans can be replayed. What differs
between policies stands in `workbench.engine.policies`.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import lt

from workbench.config import EngineConfig
from workbench.engine import admission, policies
from workbench.engine.longest_head_first import LongestHeadFirst
from workbench.engine.places import Joining, Places
from workbench.engine.request import Request, Status
from workbench.kv.block_store import BlockStore
from workbench.kv.pool import BlockPool
from workbench.plan import Scheduled, Skipped, StepPlan, StepResult

MAX_SKIPPED_LISTED = 64
"""Waiting requests whose reason a plan lists. A plan must stay linear in what is scheduled, not in the queue."""


class Scheduler(Places):
    """Serves decodes first, then everything else by rank, as far as the token budget goes.

    ``batching`` (who may join, whom a step serves) and ``share`` (who gets how much) may be replaced.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, host: BlockStore | None = None) -> None:
        super().__init__(config, pool, host)
        self.share = policies.share
        self.warming = LongestHeadFirst() if config.scheduling_policy == "lpm" else None

    def max_num_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens at which a request ends. Raises UsageError for a request that could never run to that end."""
        return admission.tokens_at_end(self.config, self.pool, num_prompt_tokens, max_tokens)

    def wake_time(self, now: float) -> float:
        """When the next step has something to do if nothing comes in before: ``now``, later, or never (``inf``)."""
        return self.batching.wake_time(self.waiting, self.running, now)

    def plan(self, now: float = 0.0) -> StepPlan:
        """Decides the next step and takes the blocks it needs. ``now``: seconds, for policies that wait."""
        needs_earlier = any(request.num_computed_tokens for request in self.running) or bool(
            self.host and self.host.tables
        )
        plan = StepPlan(pool=self.pool, continues=needs_earlier)
        if self.warming is not None:
            self.warming.rank(self)
        allowed = self.batching.may_join(self.waiting, self.running, now)
        if allowed:
            self._displace(plan)
        running = self.running
        if self.batching.keeps_seats:
            running = [request for request in running if request.status is Status.RUNNING]
            plan.held = [request.request_id for request in self.running if request.status is Status.HELD]
        reason = ""
        for served, joins in self.batching.turns(running):
            if joins:
                reason = self._serve(plan, served, allowed)
                if served and not plan.scheduled:
                    # Someone who waits was preferred by rank and then found no blocks.
                    plan.skipped.clear()
                    self._serve(plan, served, 0)
            elif plan.scheduled:
                standing = [request for request in served if request.status is Status.RUNNING]
                plan.skipped.extend(Skipped(request.request_id, "prefill_first") for request in standing)
            elif self._serve(plan, served, 0) == "no_blocks":
                reason = "no_blocks"
        self._explain(plan, reason)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, text_stops: Collection[str] = ()) -> list[Request]:
        """Records what a step computed and sampled; returns the requests that ended with it.

        ``text_stops``: ids of requests whose text is complete with the sampled token (a stop string).
        """
        finished: list[Request] = []
        running, keeps_seats = Status.RUNNING, self.batching.keeps_seats
        if result.logprobs or result.prompt_logprobs:
            _keep_logprobs(plan, result)
        for item, token_id in zip(plan.scheduled, result.token_ids, strict=True):
            request: Request = item.request  # type: ignore[assignment]
            if request.status is not running:
                continue  # aborted while the step ran
            if (token_id is None) is item.samples:
                raise RuntimeError(f"the runner returned {token_id!r} for {item}: one token where samples is set")
            request.num_computed_tokens += item.num_tokens
            if self.cache is not None:
                self.cache.publish(request.request_id, request.token_ids, request.num_computed_tokens)
            if token_id is None:
                continue
            reason = request.append(token_id, request.request_id in text_stops)
            if reason is None:
                continue
            request.end_reason = reason
            if keeps_seats:
                request.status = Status.HELD
            else:
                finished.append(request)
        if keeps_seats and self.batching.is_done(self.running, self.waiting):
            finished = list(self.running)
        for request in finished:
            self._close(request, request.end_reason or "")
        if self.cache is not None:
            self.cache.take_back()
        if finished:
            self.running = [request for request in self.running if request.status is not Status.FINISHED]
        return finished

    def _serve(self, plan: StepPlan, served: list[Request], allowed: int) -> str:
        """Serves some of the running requests and lets up to ``allowed`` waiting ones join; says what stopped these."""
        running = Status.RUNNING
        served = [request for request in served if request.status is running]
        needs = [len(request.token_ids) - request.num_computed_tokens for request in served]
        joining = self._joining(min(allowed, self.max_num_seqs - len(self.running)), needs)
        shares = self._shares(served, needs, joining)
        before, block_size = len(plan.preempted), self.pool.block_size
        for request, num_tokens in zip(served, shares, strict=False):
            if request.status is not running:
                continue  # it has made room for one before it
            if num_tokens == 0:
                plan.skipped.append(Skipped(request.request_id, "budget"))
                continue
            missing = -(-(request.num_computed_tokens + num_tokens) // block_size) - len(request.block_table)
            if missing <= 0 or self._grow(plan, request, missing):
                self._schedule(plan, request, num_tokens)
        # After a preemption there is no room by definition: letting someone in would only move the shortage.
        reason, count = "no_blocks" if len(plan.preempted) > before else "", 0
        for candidate, num_tokens in zip(joining, shares[len(served) :], strict=True):
            if not reason and num_tokens == 0:
                reason = "budget"
            if not reason and self.cache is not None and candidate.donor is None:
                candidate, num_tokens, reason = self._again(plan, candidate, num_tokens)
            if not reason and not self._join(plan, candidate, num_tokens):
                reason = "no_blocks"
            if reason:
                break
            self._schedule(plan, candidate.request, num_tokens)
            count += 1
        self.batching.joined(count)
        if reason == "no_blocks":
            self.batching.close()
        if self._returning is not None:
            return reason or "no_blocks"
        if reason or count < allowed:
            return reason or ("max_num_seqs" if len(self.running) >= self.max_num_seqs else "budget")
        return self.batching.waits_for

    def _joining(self, seats: int, needs: list[int]) -> list[Joining]:
        """The first of those that wait, as many as have seats and could use what decodes leave of the budget."""
        left = self.max_num_batched_tokens - needs.count(1)
        found: list[Joining] = []
        if self._is_anyone_returning():
            return found
        for request in self.waiting:
            if len(found) >= seats or left <= 0:
                break
            start, donor = request.num_computed_tokens, None
            if len(request.group) > 1 and start == 0 and request.num_prompt_tokens > 1:
                donor = _donor(request)
                if donor is not None:
                    start = request.num_prompt_tokens - 1
                elif _prompt_is_coming(request) or (found and found[-1].request.group is request.group):
                    continue
            candidate = Joining(request, start, donor)
            if self.cache is not None and start == 0:
                candidate = self._cached(request)
                if self.warming is not None and self.warming.waits(self, request, candidate.start, found):
                    continue
            found.append(candidate)
            left -= min(len(request.token_ids) - candidate.start, self.chunk_limit)
        return found

    def _again(self, plan: StepPlan, candidate: Joining, num_tokens: int) -> tuple[Joining, int, str]:
        """Looks for the cached head once more: what was there may have been given up for those served before.

        Where it is shorter now, the request computes more, now or later, and may not fit the budget at once. It may
        even be longer: not all blocks are compared for a part, and others may be among those that are.
        """
        request, given = candidate.request, num_tokens
        if candidate.cached:
            candidate = self._cached(request)
            num_tokens = min(given, len(request.token_ids) - candidate.start)
            needed = sum(self._needs(candidate, num_tokens))
            if candidate.part is not None and not self._can_have(needed, candidate.cached):
                # The block that is copied must stay as well, and there may be no room for both.
                candidate = candidate._replace(start=candidate.start - candidate.part.num_tokens, part=None)
                num_tokens = min(given, len(request.token_ids) - candidate.start)
        if not self.config.enable_chunked_prefill:
            # Whole or not at all; one before it may have taken more than its share in this way.
            need = len(request.token_ids) - candidate.start
            num_tokens = need if need <= self.max_num_batched_tokens else num_tokens
            if num_tokens > self.max_num_batched_tokens - plan.num_tokens:
                return candidate, 0, "budget"
        return candidate, num_tokens, ""

    def _shares(self, served: list[Request], needs: list[int], joining: list[Joining]) -> list[int]:
        """Tokens for each of ``served`` and then ``joining``: decodes come first, the others by rank."""
        asked = needs + [len(candidate.request.token_ids) - candidate.start for candidate in joining]
        budget, num_decodes = self.max_num_batched_tokens, needs.count(1)
        order: list[int] | None = None
        if num_decodes < min(len(needs), budget):  # where decodes alone exceed the budget, rank alone decides
            requests = served + [candidate.request for candidate in joining]
            later = [i for i, need in enumerate(asked) if need > 1 or i >= len(served)]
            order = [i for i, need in enumerate(needs) if need == 1] + sorted(later, key=lambda i: requests[i].rank)
            asked = [asked[i] for i in order]
        given = self.share(asked, budget, self.chunk_limit, not self.config.enable_chunked_prefill)
        if len(given) != len(asked) or sum(given) > budget or any(map(lt, asked, given)) or min(given, default=0) < 0:
            raise RuntimeError(f"share gave {given} of a budget of {budget} to needs of {asked}")
        if order is None:
            return given
        shares = [0] * len(asked)
        for i, num_tokens in zip(order, given, strict=True):
            shares[i] = num_tokens
        return shares

    def _schedule(self, plan: StepPlan, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        samples = start + num_tokens == len(request.token_ids)
        if samples and num_tokens == 1 and start >= request.num_prompt_tokens:
            kind = "decode"
        elif start < request.recompute_until:
            kind = "recompute"
        else:
            kind = "prefill"
        plan.scheduled.append(Scheduled(request, start, num_tokens, kind, samples))

    def _explain(self, plan: StepPlan, reason: str) -> None:
        """Tells why the first of those that wait do: most for the same ``reason``."""
        told = {skip.request_id for skip in plan.skipped}
        for request in self.waiting[:MAX_SKIPPED_LISTED]:
            if request.request_id not in told:
                waits = len(request.group) > 1 and _prompt_is_coming(request)
                waits = waits or (self.warming is not None and self.warming.is_warmed(request))
                why = "prefix_wait" if waits else reason
                plan.skipped.append(Skipped(request.request_id, why))


def _donor(request: Request) -> Request | None:
    """An answer to the same prompt that has its KV but for the last token's, which every answer computes itself."""
    wanted = request.num_prompt_tokens - 1
    return next((r for r in request.group if r.status is Status.RUNNING and r.num_computed_tokens >= wanted), None)


def _prompt_is_coming(request: Request) -> bool:
    """Whether another answer is computing the prompt just now, so that waiting is cheaper than doing it again."""
    if request.num_prompt_tokens == 1 or request.num_computed_tokens or _donor(request) is not None:
        return False
    return any(other.status is Status.RUNNING for other in request.group)


def _keep_logprobs(plan: StepPlan, result: StepResult) -> None:
    for item, found in zip(plan.scheduled, result.prompt_logprobs, strict=False):
        assert isinstance(item.request, Request)
        item.request.prompt_logprobs.extend(found)
    for item, logprobs in zip(plan.scheduled, result.logprobs, strict=False):
        assert isinstance(item.request, Request)
        if logprobs is not None and item.request.status is Status.RUNNING:
            item.request.logprobs.append(logprobs)
