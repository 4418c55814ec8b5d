"""An engine whose every step is held to the rules. The random schedules and the seeded bugs use the same checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from tests.engine.cached_heads import CachedHeads, is_warmed
from tests.engine.paged_fake import answer_alone
from workbench.engine import policies
from workbench.engine.engine import Engine
from workbench.engine.request import Request, Status
from workbench.engine.scheduler import MAX_SKIPPED_LISTED
from workbench.engine.trace import StepTrace
from workbench.plan import Runner, StepPlan, StepResult
from workbench.sampling_params import SamplingParams


class BrokenRule(AssertionError):
    """A rule of the engine does not hold."""


def require(truth: object, rule: str) -> None:
    if not truth:
        raise BrokenRule(rule)


class Expected(NamedTuple):
    output: list[int]
    reason: str


class CheckedEngine:
    """Adds, aborts and steps as an engine does, and checks after every step all that must hold.

    The engine's runner must be a `PagedFake`, whose answers are known beforehand.
    """

    def __init__(self, engine: Engine, eos: Sequence[int] = ()) -> None:
        self.engine = engine
        self.eos = eos
        self.requests: dict[str, Request] = {}
        """Every request there ever was, in order of arrival."""
        self.expected: dict[str, Expected] = {}
        self.computed: dict[str, int] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.num_preempted: dict[str, int] = {}
        self.tokens_at_preemption: dict[str, int] = {}
        config = engine.config
        self.cached = None
        if engine.cache is not None:
            self.cached = CachedHeads(config.block_size, config.prefix_partial_reuse)
        self.num_cached: dict[str, int] = {}
        """Cached tokens of each request, as told at its first admission."""
        self.told_cached = 0
        self.gone: set[str] = set()
        """Requests whose tokens are not to be found: the cache was emptied after they were computed."""
        self.were_running: set[str] = set()
        self.ran_before: set[str] = set()
        """Who ran when the latest step began."""
        self.failed = self.executed = False
        self.had_new: set[str] = set()
        config = engine.config
        self.in_order = config.scheduling_policy == "fcfs"
        self.oldest_first = self.in_order and config.batching == "continuous" and config.enable_chunked_prefill
        """Whether the oldest request is served in every step."""
        engine.runner = _Watched(engine.runner, self)

    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        request_id = self.engine.add_request(prompt, params, request_id, priority=priority, cache_salt=cache_salt)
        request = self.engine.requests[request_id]
        limit = min(self.engine.scheduler.max_model_len, self.engine.pool.capacity + 1)
        self.expected[request_id] = Expected(*answer_alone(prompt, params, limit, self.eos, request.seed))
        self.requests[request_id] = request
        self.computed[request_id] = self.num_preempted[request_id] = 0
        self.outputs[request_id] = []
        self.check_state()
        return request_id

    def abort(self, request_id: str) -> None:
        require(self.engine.abort(request_id), f"{request_id} is unfinished, so it can be aborted")
        require(not self.engine.abort(request_id), "nothing is aborted twice")
        self.check_state()

    def reset_prefix_cache(self) -> None:
        require(self.engine.reset_prefix_cache(), "a reset leaves nothing behind")
        if self.cached is not None:
            self.cached.forget()
            self.gone |= {name for name, request in self.requests.items() if request.num_computed_tokens}
            require(self.engine.pool.num_cached == 0, "nothing is cached after a reset")
        self.check_state()

    def step(self) -> StepTrace:
        unfinished, self.ran_before = list(self.engine.requests), self.were_running
        trace = self.engine.step()
        self._check(trace, unfinished)
        return trace

    def _check(self, trace: StepTrace, unfinished: list[str]) -> None:
        self._check_shares(trace, unfinished)
        self._check_tokens(trace)
        self.check_state()
        self._check_blocks(trace)
        self._check_cache(trace)

    def failing_step(self, error: type[BaseException]) -> None:
        """A step whose runner raises ``error``: the engine must be able to go on from there."""
        self.failed = True
        self.executed = False
        self.had_new.clear()
        self.ran_before = self.were_running
        unfinished = list(self.engine.requests)
        try:
            trace = self.engine.step()
        except error:
            self.check_state()
        else:
            require(not self.executed, "what the runner raises reaches the caller of step")
            # A step that computes nothing may still tell of an end: a batch of which only ended members are left.
            self._check(trace, unfinished)
        for request_id, request in self.engine.requests.items():
            # What the lost plan moved or copied is computed again.
            self._take_over(request_id, request.num_computed_tokens)
            require(request.num_computed_tokens in (0, self.computed[request_id]), f"{request} goes on where it stood")
            self.computed[request_id] = request.num_computed_tokens
            if request.num_computed_tokens == 0:
                self.gone.discard(request_id)
            self.num_preempted[request_id] = request.num_preemptions

    def drain(self) -> int:
        """Steps until nothing is left; nobody else will come. Each step brings somebody on, so there is a bound.

        Where the oldest is served in every step the bound is tight; else what preemptions cost is allowed for.
        """
        self.engine.more_may_come = False
        bound = sum(request.max_num_tokens for request in self.engine.requests.values())
        if not self.oldest_first:
            bound = bound * (3 + policies.MAX_DISPLACED) + 2 * len(self.engine.requests)
        steps = 0
        while self.engine.has_unfinished():
            require(steps < bound, f"everything ends within {bound} steps")
            self.step()
            steps += 1
        self.check_empty()
        return steps

    def check_empty(self) -> None:
        scheduler, pool = self.engine.scheduler, self.engine.pool
        require(not scheduler.running and not scheduler.waiting, "the scheduler holds nothing")
        require(not pool.tables and pool.num_available == pool.num_blocks, "the pool is empty again")
        if (host := self.engine.host) is not None:
            require(not host.tables and host.num_free == host.num_blocks, "the host's store is empty again")
        for request in self.requests.values():
            require(request.status is Status.FINISHED, f"{request} ended")
            require(request.finish_reason in ("stop", "length", "abort"), f"{request} has a reason")

    def check_state(self) -> None:
        """What holds between any two calls."""
        engine, pool = self.engine, self.engine.pool
        pool.check()
        running, waiting = engine.scheduler.running, engine.scheduler.waiting
        self.were_running = {request.request_id for request in running}
        in_order = [request.request_id for request in [*running, *waiting]]
        require(sorted(in_order) == sorted(engine.requests), f"nobody is lost or doubled: {in_order}")
        if self.in_order:
            # In a batch one may have its answer while one before it lost its blocks.
            held = {request.request_id for request in running if request.status is Status.HELD}
            line = [name for name in in_order if name not in held]
            true = line == [name for name in engine.requests if name not in held]
            require(true or self.failed, f"nobody is overtaken: {line}")
        for line in (running, waiting):
            ranks = [request.rank for request in line]
            require(ranks == sorted(ranks), f"who goes first stands first: {ranks}")
        require(len(running) <= engine.config.max_num_seqs, "at most max_num_seqs run")
        keeps_seats = engine.config.batching in ("static", "dynamic")
        holding = [r.request_id for r in running if r.status is Status.RUNNING or r.block_table]
        require(sorted(pool.tables) == sorted(holding), "exactly who runs holds blocks")
        for request in running:
            held = request.status is Status.HELD
            require(request.status is Status.RUNNING or (held and keeps_seats), f"{request} runs")
            require((request.end_reason is not None) == held, f"{request} is held when its answer is complete")
            if request.block_table or not held:
                require(request.block_table is pool.tables[request.request_id], f"{request} reads the pool's own table")
                require(len(request.block_table) >= pool.blocks_for(request.num_computed_tokens), f"{request} has room")
        kept = {} if engine.host is None else engine.host.tables
        if engine.host is not None:
            engine.host.check()
        require(kept.keys() <= {request.request_id for request in waiting}, "only who waits is kept by the host")
        for request in waiting:
            require(request.status is Status.WAITING and not request.block_table, f"{request} holds nothing")
            blocks, computed = len(kept.get(request.request_id, ())), request.num_computed_tokens
            true = blocks == pool.blocks_for(computed) if computed else blocks == 0
            require(true, f"{request} has nothing in the cache but {blocks} blocks in the host's store")

    def check_plan(self, plan: StepPlan) -> None:
        """What holds between planning and computing: who was left out, was left out for a reason that is true."""
        config, scheduler, pool = self.engine.config, self.engine.scheduler, self.engine.pool
        kept = {} if self.engine.host is None else self.engine.host.tables
        for request_id in plan.preempted:
            request = self.requests[request_id]
            if request_id not in kept:
                self.computed[request_id] = 0
                self.gone.discard(request_id)
            self.num_preempted[request_id] += 1
            require(request.num_preemptions == self.num_preempted[request_id], "preemptions add up")
            had = self.tokens_at_preemption.get(request_id, 0)
            require(request.num_tokens > had or self.failed, f"{request} has a token to show since it was preempted")
            self.tokens_at_preemption[request_id] = request.num_tokens
        left = config.max_num_batched_tokens - plan.num_tokens
        require(left >= 0, f"the budget is overrun by {-left} tokens")
        told = dict(plan.skipped)
        require(len(told) == len(plan.skipped), "one reason for each")
        served = {item.request.request_id for item in plan.scheduled}
        restored = {move.to for move in plan.moves if move.target == "pool"}
        decodes = [
            item.request.request_id
            for item in plan.scheduled
            # One that comes back from the host may have a single token left: it joins with that, others with a prompt.
            if item.kind == "decode"
            and restored.isdisjoint(item.request.block_table)
            # So does one whose tokens were all cached.
            and (self.cached is None or item.request.request_id in self.were_running)
        ]
        running = [request for request in scheduler.running if request.status is Status.RUNNING]
        held = [request.request_id for request in scheduler.running if request.status is Status.HELD]
        require(plan.held == held, "idle slots are told")
        whole = not config.enable_chunked_prefill
        for request in running:
            reason = told.get(request.request_id)
            true = request.request_id in served
            if reason == "budget":
                # After a failure one who waits may go before one who runs, and then find no blocks.
                true = left == 0 or whole or bool(plan.preempted) or not self.in_order or self.failed
            elif reason == "prefill_first":
                true = config.batching == "prefill-first" and not decodes and bool(served)
            require(true, f"{request} runs and is served unless the budget is spent: {reason}")
            need = request.num_tokens - request.num_computed_tokens
            if need == 1 and len(running) <= config.max_num_batched_tokens and config.batching != "prefill-first":
                require(request.request_id in served, f"{request} decodes and gets a token in every step")
        for item in plan.scheduled:
            caught_up = item.start + item.num_tokens == len(item.request.token_ids)
            cut = not caught_up and len(item.request.token_ids) - item.start <= config.max_num_batched_tokens
            require(not (whole and cut), f"{item.request} is computed whole or not at all")
        for request in islice(scheduler.waiting, MAX_SKIPPED_LISTED):
            require(told.get(request.request_id), f"{request} waits and is told why")
        if scheduler.waiting:
            head = scheduler.waiting[0]
            blocks = scheduler.cached_head(head)
            start = head.num_computed_tokens or len(blocks) * pool.block_size
            need = head.num_tokens - start
            if config.batching == "prefill-first" and decodes:
                left = config.max_num_batched_tokens  # what it had before it was found that only decodes can go on
            missing = pool.blocks_for(start + min(need, left, scheduler.chunk_limit)) - len(blocks)
            missing += sum(pool.ref_counts[block] == 0 for block in blocks)
            came_back = head.num_preemptions > 0 or scheduler._returning is not None
            batched = config.batching in ("static", "dynamic")
            true = {
                "budget": left == 0 or (whole and need > left),
                "max_num_seqs": len(scheduler.running) == config.max_num_seqs or bool(plan.preempted),
                "no_blocks": bool(plan.preempted) or missing > pool.num_available or (came_back and bool(running)),
                "prefix_wait": config.scheduling_policy == "lpm" and is_warmed(head, scheduler.running, start),
                "waiting_batch": batched and (bool(scheduler.running) or self.engine.more_may_come),
            }
            reason = told[head.request_id]
            require(true.get(reason), f"{head} waits although resources are free: {told}")
            if reason == "max_num_seqs" and config.scheduling_policy == "priority":
                last = scheduler.running[-1]
                joined = served - self.were_running  # one in a step is let in at the cost of another
                alone = sum(pool.ref_counts[block] == 1 for block in last.block_table)
                scarce = pool.blocks_for(head.num_tokens) > pool.num_available + alone
                require(
                    not policies.may_displace(head, last) or came_back or plan.preempted or joined or scarce,
                    f"{head} waits for {last} to end",
                )

    def _check_shares(self, trace: StepTrace, unfinished: list[str]) -> None:
        self.had_new = {item["request_id"] for item in trace.new_tokens}
        config = self.engine.config
        limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        ids = [item["request_id"] for item in trace.scheduled]
        require(
            len(ids) == len(set(ids)) <= config.max_num_seqs, "a request has one share, and at most max_num_seqs do"
        )
        if self.oldest_first:
            # One that a failure has sent away needs room for all its tokens, and others go on meanwhile.
            true = not unfinished or unfinished[0] in ids or (self.failed and bool(ids))
            require(true, "the oldest unfinished request is served in every step")
        if unfinished and not ids:
            reasons = {skip["reason"] for skip in trace.skipped} - {"queue_limit"}
            limit_reached = len(self.engine.scheduler.waiting) == config.max_num_queued_reqs
            waits = reasons == {"waiting_batch"} and self.engine.more_may_come and not limit_reached
            require(waits or trace.finished, f"a step serves somebody: {trace.skipped}")
            if waits and trace.wake_time is not None:
                require(trace.wake_time > trace.time, "who waits is told how long")
        require(set(ids) <= set(unfinished), "only unfinished requests are served")
        for item in trace.scheduled:
            request_id, count = item["request_id"], item["num_tokens"]
            require(request_id not in trace.preempted, f"{request_id} is not served in the step that preempts it")
            require(1 <= count <= limit, f"{request_id} gets between 1 and {limit} tokens, not {count}")
            self._take_over(request_id, item["num_computed_tokens"])
            require(item["num_computed_tokens"] == self.computed[request_id], f"{request_id} goes on where it stood")
            self.computed[request_id] += count

    def _take_over(self, request_id: str, start: int) -> None:
        """One that joins may begin with tokens that another has computed; what was computed before, and no more."""
        request = self.requests[request_id]
        if self.cached is None or self.computed[request_id] or request_id in self.ran_before:
            return
        unknown = 2 if request_id in self.had_new else 1  # the last token then, and the one that this step brought
        known = self.cached.longest(request.cache_salt, request.token_ids[: request.num_tokens - unknown])
        require(start <= known, f"{request_id} takes {start} tokens over and {known} are computed, save its last")
        if self.engine.pool.evicted == 0 and not self.failed:
            # There may be no room for a block and the copy of its part at once.
            true = start in (known, known // self.cached.block_size * self.cached.block_size)
            require(true, f"{request_id} takes {start} tokens over although {known} are cached")
        self.computed[request_id] = start

    def _check_tokens(self, trace: StepTrace) -> None:
        new = {item["request_id"]: item["token_id"] for item in trace.new_tokens}
        require(len(new) == len(trace.new_tokens), "at most one token for each in a step")
        for request_id, token_id in new.items():
            self.outputs[request_id].append(token_id)
        for item in trace.finished:
            require(item["request_id"] not in self.ended, f"{item} ends once")
            self.ended[item["request_id"]] = item["reason"]
        for item in trace.scheduled:
            request = self.requests[item["request_id"]]
            if request.finish_reason != "abort":
                computed, sampled = self.computed[request.request_id], request.request_id in new
                require(request.num_computed_tokens == computed, f"{request} counts what was computed: {computed}")
                require(sampled == (computed == request.num_tokens - sampled), f"{request} samples when caught up")
        for request_id, request in self.requests.items():
            output, expected = self.outputs[request_id], self.expected[request_id]
            require(request.output_token_ids == output, f"{request_id}: the trace tells every token")
            require(output == expected.output[: len(output)], f"{request_id} answers as it would alone")
            reason = request.finish_reason
            if request.end_reason is not None:
                require((output, request.end_reason) == expected, f"{request_id}: {request.end_reason}")
            elif reason is None:
                require(len(output) < len(expected.output), f"{request_id} goes on past its end")
            elif reason != "abort":
                require((output, reason) == expected, f"{request_id}: {reason}")
            if reason not in (None, "abort"):
                require(self.ended.get(request_id) == reason, f"{request_id} is told to have ended")

    def _check_blocks(self, trace: StepTrace) -> None:
        pool = self.engine.pool
        require(trace.blocks["free"] == pool.num_free and trace.blocks["total"] == pool.num_blocks, "blocks are told")
        require(pool.num_blocks - pool.num_free == pool.allocated - pool.freed, "blocks taken and returned add up")
        for request in self.engine.scheduler.running:
            held, needed = len(request.block_table), pool.blocks_for(request.num_computed_tokens)
            if request.status is Status.RUNNING and request.num_preemptions:
                # One that came back took the blocks for all its tokens at once.
                true = needed <= held <= pool.blocks_for(request.num_tokens)
            else:
                true = held == needed or (request.status is Status.HELD and held == 0)
            require(true or self.failed, f"{request} holds {held} blocks and needs {needed}")

    def _check_cache(self, trace: StepTrace) -> None:
        cache = self.engine.cache
        if cache is None or self.cached is None:
            require(trace.cached_tokens == trace.blocks["evicted"] == 0, "nothing is cached")
            return
        self.told_cached += trace.cached_tokens
        require(trace.blocks["cached"] == cache.num_cached, "cached blocks are told")
        for request_id, request in self.requests.items():
            if request.status is Status.RUNNING:
                told = self.num_cached.setdefault(request_id, request.num_cached_tokens)
                require(told == request.num_cached_tokens, f"{request}: recomputation is no hit")
            elif request.num_cached_tokens:
                self.num_cached.setdefault(request_id, request.num_cached_tokens)
            require(request.num_cached_tokens < request.num_prompt_tokens, f"{request}: the last token is computed")
            if request.request_id not in self.gone and request.num_computed_tokens:
                self.cached.computed(request.cache_salt, request.token_ids[: request.num_computed_tokens])
        require(self.told_cached == sum(self.num_cached.values()), "the trace tells every cached token once")
        require(self.told_cached == cache.stats.hit_tokens, "hits are counted once, at the first admission")
        admitted = sum(request.first_scheduled_time is not None for request in self.requests.values())
        require(cache.stats.queries == admitted, "every request asks once, when it is first admitted")


class _Watched:
    """Shows every plan to the checks before it is carried out."""

    def __init__(self, runner: Runner, checked: CheckedEngine) -> None:
        self.runner = runner
        self.checked = checked

    def execute(self, plan: StepPlan) -> StepResult:
        self.checked.executed = True
        self.checked.check_plan(plan)
        return self.runner.execute(plan)
