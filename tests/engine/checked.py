"""An engine whose every step is held to the rules. The random schedules and the seeded bugs use the same checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from tests.engine.paged_fake import answer_alone
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
        self.failed = False
        engine.runner = _Watched(engine.runner, self)

    def add(self, prompt: list[int], params: SamplingParams, request_id: str | None = None) -> str:
        request_id = self.engine.add_request(prompt, params, request_id)
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

    def step(self) -> StepTrace:
        unfinished = list(self.engine.requests)
        trace = self.engine.step()
        self._check_shares(trace, unfinished)
        self._check_tokens(trace)
        self.check_state()
        self._check_blocks(trace)
        return trace

    def failing_step(self, error: type[BaseException]) -> None:
        """A step whose runner raises ``error``: the engine must be able to go on from there."""
        self.failed = True
        try:
            self.engine.step()
        except error:
            self.check_state()
        else:
            raise BrokenRule("what the runner raises reaches the caller of step")

    def drain(self) -> int:
        """Steps until nothing is left. The oldest request is served in every step, so their number has a bound."""
        bound = sum(request.max_num_tokens for request in self.engine.requests.values())
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
        require(not pool.tables and pool.num_free == pool.num_blocks, "the pool is empty again")
        for request in self.requests.values():
            require(request.status is Status.FINISHED, f"{request} ended")
            require(request.finish_reason in ("stop", "length", "abort"), f"{request} has a reason")

    def check_state(self) -> None:
        """What holds between any two calls."""
        engine, pool = self.engine, self.engine.pool
        pool.check()
        running, waiting = engine.scheduler.running, list(engine.scheduler.waiting)
        in_order = [request.request_id for request in [*running, *waiting]]
        require(in_order == list(engine.requests), f"nobody is lost, doubled or overtaken: {in_order}")
        require(len(running) <= engine.config.max_num_seqs, "at most max_num_seqs run")
        require(list(pool.tables) == [request.request_id for request in running], "exactly who runs holds blocks")
        for request in running:
            require(request.status is Status.RUNNING, f"{request} runs")
            require(request.block_table is pool.tables[request.request_id], f"{request} reads the pool's own table")
            require(len(request.block_table) >= pool.blocks_for(request.num_computed_tokens), f"{request} has room")
        for request in waiting:
            require(request.status is Status.WAITING and not request.block_table, f"{request} holds nothing")
            require(request.num_computed_tokens == 0, f"{request} has nothing in the cache")

    def check_plan(self, plan: StepPlan) -> None:
        """What holds between planning and computing: who was left out, was left out for a reason that is true."""
        config, scheduler, pool = self.engine.config, self.engine.scheduler, self.engine.pool
        for request_id in plan.preempted:
            self.computed[request_id] = 0
            self.num_preempted[request_id] += 1
            require(self.requests[request_id].num_preemptions == self.num_preempted[request_id], "preemptions add up")
        left = config.max_num_batched_tokens - sum(item.num_tokens for item in plan.scheduled)
        require(left >= 0, f"the budget is overrun by {-left} tokens")
        told = dict(plan.skipped)
        require(len(told) == len(plan.skipped), "one reason for each")
        served = {item.request.request_id for item in plan.scheduled}
        for request in scheduler.running:
            require(request.request_id in served or (left == 0 and told[request.request_id] == "budget"),
                    f"{request} runs and is served unless the budget is spent")  # fmt: skip
        for request in islice(scheduler.waiting, MAX_SKIPPED_LISTED):
            require(told.get(request.request_id), f"{request} waits and is told why")
        if scheduler.waiting:
            head = scheduler.waiting[0]
            missing = pool.blocks_for(min(head.num_tokens, left, scheduler.chunk_limit))
            true = {
                "budget": left == 0,
                "max_num_seqs": len(scheduler.running) == config.max_num_seqs,
                "no_blocks": bool(plan.preempted) or missing > pool.num_free,
            }
            require(true.get(told[head.request_id]), f"{head} waits although resources are free: {told}")

    def _check_shares(self, trace: StepTrace, unfinished: list[str]) -> None:
        config = self.engine.config
        limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        ids = [item["request_id"] for item in trace.scheduled]
        require(
            len(ids) == len(set(ids)) <= config.max_num_seqs, "a request has one share, and at most max_num_seqs do"
        )
        require(not unfinished or unfinished[0] in ids, "the oldest unfinished request is served in every step")
        require(set(ids) <= set(unfinished), "only unfinished requests are served")
        for item in trace.scheduled:
            request_id, count = item["request_id"], item["num_tokens"]
            require(request_id not in trace.preempted, f"{request_id} is not served in the step that preempts it")
            require(1 <= count <= limit, f"{request_id} gets between 1 and {limit} tokens, not {count}")
            require(item["num_computed_tokens"] == self.computed[request_id], f"{request_id} goes on where it stood")
            self.computed[request_id] += count

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
            if reason is None:
                require(len(output) < len(expected.output), f"{request_id} goes on past its end")
            elif reason != "abort":
                require(
                    (output, reason) == expected and self.ended.get(request_id) == reason, f"{request_id}: {reason}"
                )

    def _check_blocks(self, trace: StepTrace) -> None:
        pool = self.engine.pool
        require(trace.blocks["free"] == pool.num_free and trace.blocks["total"] == pool.num_blocks, "blocks are told")
        require(pool.num_blocks - pool.num_free == pool.allocated - pool.freed, "blocks taken and returned add up")
        for request in self.engine.scheduler.running:
            held, needed = len(request.block_table), pool.blocks_for(request.num_computed_tokens)
            require(held == needed or self.failed, f"{request} holds {held} blocks and needs {needed}")


class _Watched:
    """Shows every plan to the checks before it is carried out."""

    def __init__(self, runner: Runner, checked: CheckedEngine) -> None:
        self.runner = runner
        self.checked = checked

    def execute(self, plan: StepPlan) -> StepResult:
        self.checked.check_plan(plan)
        return self.runner.execute(plan)
