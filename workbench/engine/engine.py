"""Engine: the short loop between the scheduler, which decides, and the runner, which does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from workbench.config import EngineConfig
from workbench.engine.admission import QueueFull, check_priority, check_queue
from workbench.engine.block_counts import BlockCounts
from workbench.engine.clock import Clock, WallClock
from workbench.engine.request import Request, TextSink
from workbench.engine.request_checks import (
    check_arguments,
    check_cache_salt,
    check_kv_fields,
    check_params,
    checked_token_ids,
)
from workbench.engine.scheduler import Scheduler
from workbench.engine.trace import StepTrace, TraceWriter
from workbench.errors import UsageError
from workbench.kv.block_store import HOST, BlockStore
from workbench.kv.caching_pool import CachingPool, open_pool
from workbench.kv.prefix_index import MAX_TOKEN_ID
from workbench.plan import Runner, StepPlan, StepResult
from workbench.sampling_params import MAX_SEED, SamplingParams

FORK_SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of the ``n`` answers to one prompt: far apart, so that two requests' answers do not share seeds."""


class Engine:
    """Serves requests step by step.

    ``config`` must say ``num_kv_blocks`` and ``max_model_len`` (`LLM` works them out from the model and the memory).
    ``tokenize`` turns text prompts into token ids; without it prompts must be token ids. ``open_text`` makes the text
    of a new answer (request id, parameters); without it stop strings are refused. ``listeners`` are called with
    each `StepTrace`. ``kv_fields``: what keys and values depend on besides the tokens (`workbench.kv.namespace`).
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        clock: Clock | None = None,
        eos_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        tokenize: Callable[[str], list[int]] | None = None,
        open_text: Callable[[str, SamplingParams], TextSink] | None = None,
        kv_fields: Mapping[str, str] | None = None,
    ) -> None:
        if config.num_kv_blocks is None or config.max_model_len is None:
            raise UsageError("an Engine needs num_kv_blocks and max_model_len; LLM works them out from the model")
        self.config = config
        self.runner = runner
        self.clock: Clock = clock or WallClock()
        self.pool = open_pool(config, kv_fields)
        self.cache = self.pool if isinstance(self.pool, CachingPool) else None
        """The pool, where it keeps what was computed (``enable_prefix_caching``)."""
        self.host: BlockStore | None = None
        """Where preempted requests' blocks go (``preemption_mode="swap"``)."""
        if config.preemption_mode == "swap":
            self.host = BlockStore(HOST, config.num_host_kv_blocks or config.num_kv_blocks, config.block_size)
        self.scheduler = Scheduler(config, self.pool, self.host)
        self.listeners: list[Callable[[StepTrace], None]] = []
        self.requests: dict[str, Request] = {}
        """Unfinished requests by id, in order of arrival."""
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._tokenize = tokenize
        self._open_text = open_text
        self._num_added = 0
        self._num_steps = 0
        self._num_finished = 0
        self._num_refused = 0
        self.executing = False
        """Whether the runner computes just now: the one time in a step when an exception leaves the engine whole."""
        self._inputs: list[dict[str, Any]] = []
        self._aborted: list[Request] = []
        self._refused: list[str] = []
        self._counts = BlockCounts(self.pool, self.host)

    def add_request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        tenant: str | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
    ) -> str:
        """Queues a prompt (text or token ids) and returns its request id.

        ``arrival_time``: seconds of the engine's clock, now unless given; negative for what arrived before the clock
        was made. ``cache_salt``: with prefix caching, share cached blocks only with requests of the same salt; empty
        text is none. Raises UsageError, a ValueError, for what could never run: an empty prompt, a token outside the
        vocabulary, more tokens than the context or the pool holds, an id that is in use. Raises QueueFull, which has a
        ``reason``, where ``max_num_queued_reqs`` wait already.
        """
        params = SamplingParams() if params is None else params
        check_arguments(params, request_id, tenant, priority, arrival_time)
        check_cache_salt(cache_salt, self.cache is not None)
        token_ids = self._token_ids(prompt)
        check_params(params, self._vocab_size, self._open_text is not None)
        max_num_tokens = self.scheduler.max_num_tokens(len(token_ids), params.max_tokens)
        check_priority(self.config, priority := int(priority))
        if request_id is None:
            # Ids given by hand may be numbers too.
            request_id = next(name for n in count(self._num_added) if (name := str(n)) not in self.requests)
        # Without a seed of its own a request gets one from its number, so equal prompts still differ.
        own = (self.config.seed * 1_000_003 + self._num_added) & MAX_SEED
        seed = own if params.seed is None else params.seed
        now = self.clock.now() if arrival_time is None else float(arrival_time)
        names = [request_id, *(f"{request_id}.{index}" for index in range(1, params.n))]
        taken = next((name for name in names if name in self.requests), None)
        if taken is not None:
            raise UsageError(f"request_id {taken!r} is in use by an unfinished request: choose another")
        told: dict[str, Any] = {"arrival_time": now, **({"priority": priority} if priority else {})}
        told |= {"cache_salt": cache_salt} if cache_salt else {}
        first = {"prompt_token_ids": token_ids, "params": {**params.to_dict(), "seed": seed}}
        try:
            check_queue(self.config, len(self.scheduler.waiting), len(names))
        except QueueFull as refusal:
            self._note({"refused": {"request_id": request_id, **told, **first}, "reason": refusal.reason})
            self._refused += names
            self._num_added += 1
            self._num_refused += len(names)
            raise
        group: list[Request] = []
        for index, name in enumerate(names):
            request = Request(
                name,
                token_ids,
                params,
                max_num_tokens=max_num_tokens,
                seed=seed + index * FORK_SEED_STEP,
                eos_token_ids=self._eos_token_ids,
                arrival_time=now,
                tenant=tenant,
                priority=priority,
                text=self._open_text(name, params) if self._open_text else None,
                group=group,
                cache_salt=cache_salt or "",
            )
            self.scheduler.add(request)
            self.requests[name] = request
            self._note({"add": {"request_id": name, **told, **({"fork_of": request_id} if index else first)}})
        self._num_added += 1
        return request_id

    def abort(self, request_id: str) -> bool:
        """Ends a request in any state and frees its blocks. False when there is no such unfinished request.

        The answers of ``n`` are requests of their own: ``ID``, ``ID.1``, ``ID.2``, …; each is ended by its own id.
        """
        request = self.requests.pop(request_id, None)
        if request is None:
            return False
        self.scheduler.abort(request)
        if request.text is not None:
            request.text.finish()
        request.finish_time = self.clock.now()
        self._aborted.append(request)
        self._note({"abort": request_id})
        return True

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    @property
    def more_may_come(self) -> bool:
        """Whether further requests may arrive: set by whoever feeds the engine, False unless told.

        Static and dynamic batching wait for company only while it is True; so a loop over `step` always ends.
        """
        return self.scheduler.batching.more_may_come

    @more_may_come.setter
    def more_may_come(self, value: bool) -> None:
        if value != self.more_may_come:
            self.scheduler.batching.more_may_come = value
            self._note({"more_may_come": value})

    def wake_time(self) -> float:
        """The clock's time at which the next step has something to do if nothing comes in before.

        Now, when there is work; the end of the wait, when a batch waits for company; ``inf``, when only a new request
        can help. Whoever feeds the engine sleeps until then or the next arrival: ``clock.advance_to(min(…))``.
        """
        return self.scheduler.wake_time(self.clock.now())

    def step(self) -> StepTrace:
        """Plans, executes and commits one step; an exception of the runner leaves the engine able to go on.

        A step that computes nothing, because a batch waits for company, tells until when in the trace's ``wake_time``.
        """
        self.executing = False  # An interrupt may have come just before the last step could say that it was over.
        start = self.clock.now()
        plan = self.scheduler.plan(start)
        planned = self.clock.now()
        for item in plan.scheduled:
            if isinstance(request := item.request, Request) and request.first_scheduled_time is None:
                request.first_scheduled_time = planned
        result = self._execute(plan) if plan.scheduled or plan.moves else StepResult(())
        executed = self.clock.now()
        appended = _appended(plan, result)
        text_stops = {request.request_id for request, token_id in appended if request.push_text(token_id)}
        detokenized = self.clock.now()
        finished = self.scheduler.commit(plan, result, text_stops)
        for request, _ in appended:
            if request.end_reason is not None and request.text is not None and request.request_id not in text_stops:
                request.text.finish()
        trace = self._trace(plan, result, appended, finished, start, detokenized)
        end = self.clock.now()
        trace.duration = end - start
        trace.phases = {
            "schedule": planned - start,
            "prepare": result.phases.get("prepare", 0.0),
            "forward": result.phases.get("forward", 0.0),
            "sample": result.phases.get("sample", 0.0),
            "detokenize": detokenized - executed,
            "commit": end - detokenized,
        }
        self._tell(trace)
        return trace

    def _tell(self, trace: StepTrace) -> None:
        """Every listener hears of the step, even if one before it fails; the first failure is raised afterwards."""
        failure: Exception | None = None
        for listener in list(self.listeners):
            try:
                listener(trace)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def stats(self) -> dict[str, int]:
        """Counts since the start and the state now; with prefix caching also its queries and hits."""
        told = {
            "num_steps": self._num_steps,
            "num_added": self._num_added,
            "num_finished": self._num_finished + len(self._aborted),
            "num_waiting": len(self.scheduler.waiting),
            "num_running": len(self.scheduler.running),
            "num_preemptions": self.scheduler.num_preemptions,
            "num_refused": self._num_refused,
            "num_free_blocks": self.pool.num_free,
            "num_kv_blocks": self.pool.num_blocks,
            "num_free_host_blocks": self.host.num_free if self.host else 0,
            "num_host_kv_blocks": self.host.num_blocks if self.host else 0,
        }
        if self.cache is not None:
            told |= {f"prefix_{name}": count for name, count in self.cache.stats._asdict().items()}
            told |= {"num_cached_blocks": self.cache.num_cached, "num_evicted_blocks": self.cache.evicted}
        return told

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached keys and values; whether none can be met any more.

        Also while requests run: they keep their blocks, but nobody else finds these, now or later. Must be called when
        weights have changed in place.
        """
        if self.cache is None:
            return True
        self.cache.reset()
        self._note({"reset_prefix_cache": True})
        return self.cache.index.num_blocks == 0

    def use_kv_fields(self, **fields: str) -> None:
        """Says that keys and values now depend on something else (see ``kv_fields``), such as other weights.

        What is cached is met again only when all fields are again what they were. Without prefix caching there is
        nothing to meet. Raises UsageError for what is no text, and while requests are unfinished: theirs would be of
        both kinds.
        """
        check_kv_fields(fields)
        if self.requests:
            raise UsageError(
                f"{len(self.requests)} requests are unfinished: finish or abort them before kv_fields change"
            )
        if self.cache is not None:
            self.cache.fields |= fields
            self._note({"kv_fields": fields})

    def record(self, path: str | Path, **header: Any) -> TraceWriter:
        """Writes every step from now on to ``path`` as JSONL, until the returned writer is closed.

        A recording that is to be replayed must begin while no request is unfinished and nothing is cached
        (`reset_prefix_cache`).
        """
        if self._inputs and not self.requests:
            self.step()  # An empty step tells of the requests that ended before, so the recording need not.
        told = {"eos_token_ids": list(self._eos_token_ids), "more_may_come": self.more_may_come}
        if self.cache is not None:
            told["num_cached_blocks"] = self.cache.num_cached
        writer = TraceWriter(path, {"config": self.config.to_dict(), **told, **header}, on_close=self._forget)
        self.listeners.append(writer)
        return writer

    def _forget(self, writer: TraceWriter) -> None:
        if writer in self.listeners:
            self.listeners.remove(writer)

    def _execute(self, plan: StepPlan) -> StepResult:
        try:
            self.executing = True
            result = self.runner.execute(plan)
        except BaseException:
            self.executing = False
            self.scheduler.rollback(plan)
            raise
        self.executing = False
        return result

    def _note(self, event: dict[str, Any]) -> None:
        self._inputs.append({**event, "during_step": True} if self.executing else event)

    def _token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenize is None:
                raise UsageError("a text prompt needs a tokenizer and this model came without one: give token ids")
            return self._tokenize(prompt)
        return checked_token_ids(prompt, self._vocab_size, MAX_TOKEN_ID if self.cache else None)

    def _trace(
        self,
        plan: StepPlan,
        result: StepResult,
        appended: list[tuple[Request, int]],
        finished: list[Request],
        start: float,
        now: float,
    ) -> StepTrace:
        for request, _ in appended:
            request.last_token_time = now
            if request.first_token_time is None:
                request.first_token_time = now
        for request in finished:
            request.finish_time = now
            del self.requests[request.request_id]
        ended = [*self._aborted, *finished]
        self._num_finished += len(ended)
        blocks, queried = self._counts.since_the_last_call()
        skipped = [{"request_id": skip.request_id, "reason": skip.reason} for skip in plan.skipped]
        skipped += [{"request_id": name, "reason": QueueFull.reason} for name in self._refused]
        wake_time = self.scheduler.wake_time(start)
        trace = StepTrace(
            step=self._num_steps,
            time=start,
            duration=0.0,
            scheduled=[
                {
                    "request_id": item.request.request_id,
                    "num_tokens": item.num_tokens,
                    "num_computed_tokens": item.start,
                    "kind": item.kind,
                }
                for item in plan.scheduled
            ],
            skipped=skipped,
            preempted=plan.preempted,
            finished=[{"request_id": r.request_id, "reason": r.finish_reason or ""} for r in ended],
            blocks=blocks,
            cached_tokens=queried.hit_tokens,
            new_tokens=[{"request_id": request.request_id, "token_id": token_id} for request, token_id in appended],
            flops=result.flops,
            bytes=result.bytes,
            moved_bytes=result.moved_bytes,
            num_waiting=len(self.scheduler.waiting),
            num_running=len(self.scheduler.running),
            inputs=self._inputs,
            held=plan.held,
            queried=queried._asdict() if self.cache else {},
            wake_time=None if plan.scheduled or wake_time <= start or math.isinf(wake_time) else wake_time,
        )
        self._num_steps += 1
        self._inputs, self._aborted, self._refused = [], [], []
        return trace


def _appended(plan: StepPlan, result: StepResult) -> list[tuple[Request, int]]:
    """The requests that gained a token: not those that were aborted while it was computed."""
    return [
        (item.request, token_id)
        for item, token_id in zip(plan.scheduled, result.token_ids, strict=True)
        if token_id is not None and isinstance(item.request, Request) and item.request.finish_reason != "abort"
    ]
