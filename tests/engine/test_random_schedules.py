"""Random arrivals, aborts, failures, lengths, budgets, pools: after every step all rules of `CheckedEngine` hold."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.engine.checked import CheckedEngine
from tests.engine.paged_fake import VOCAB_SIZE, open_engine
from workbench.engine import policies
from workbench.engine.admission import QueueFull
from workbench.errors import UsageError
from workbench.plan import StepPlan
from workbench.sampling_params import SamplingParams

SEEN = {"schedules": 0, "steps": 0, "preemptions": 0, "most_preemptions": 0, "aborts": 0, "failures": 0, "refusals": 0,
        "swapped_blocks": 0, "displaced": 0, "idle_slots": 0, "cached_tokens": 0, "evicted": 0}  # fmt: skip


CROWDED = {"block_size": 2, "num_kv_blocks": 12, "max_model_len": 25, "max_num_seqs": 8, "max_num_batched_tokens": 64}
AT_ONCE = {"batching": "continuous", "max_num_queued_reqs": None}
WAYS: list[dict[str, Any]] = [
    {},
    {**CROWDED, "num_host_kv_blocks": 20},
    {**CROWDED, "scheduling_policy": "priority", **AT_ONCE},
    {"batching": "static"},
    {**CROWDED, "prefix_index": "radix", "num_kv_blocks": 16, **AT_ONCE},
]
"""Options that the short run holds fast, in turn: what is rare among all settings is common among these."""
FORCED: dict[str, Any] = {}


class RunnerFailed(RuntimeError):
    pass


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([4, 2, 3, 1, 7, 16]),
        num_kv_blocks=st.sampled_from([6, 3, 8, 12, 4, 1, 2, 16]),
        max_model_len=st.sampled_from([40, 60, 25, 10, 3, 2]),
        max_num_batched_tokens=st.sampled_from([17, 64, 8, 5, 3, 2, 1]),
        max_num_seqs=st.sampled_from([8, 3, 2, 1]),
        long_prefill_token_threshold=st.sampled_from([0, 0, 1, 3, 9]),
        eos=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2),
        batching=st.sampled_from(["continuous", "continuous", "prefill-first", "static", "dynamic"]),
        scheduling_policy=st.sampled_from(["fcfs", "priority", "shortest-prefill-first"]),
        enable_chunked_prefill=st.sampled_from([True, True, False]),
        num_host_kv_blocks=st.sampled_from([None, 1, 3, 20]),
        max_num_queued_reqs=st.sampled_from([None, None, 4]),
        prefix_index=st.sampled_from([None, "radix", "hash"]),
        eviction_policy=st.sampled_from(["lru", "lru", "lfu", "fifo"]),
        prefix_partial_reuse=st.booleans(),
    )
    def open(self, eos: list[int], **options: Any) -> None:
        options |= FORCED
        if not options["enable_chunked_prefill"]:
            del options["long_prefill_token_threshold"]
        if options["num_host_kv_blocks"] is not None:
            options["preemption_mode"] = "swap"
        if options["prefix_index"] is None:
            del options["prefix_index"], options["eviction_policy"], options["prefix_partial_reuse"]
        else:
            options["enable_prefix_caching"] = True
            options["prefix_partial_reuse"] &= options["block_size"] > 1
            if options["scheduling_policy"] == "shortest-prefill-first" and options["eviction_policy"] == "lru":
                options["scheduling_policy"] = "lpm"
        if options["batching"] == "dynamic":
            options["max_wait_ms"] = 3000.0
        self.engine = open_engine(eos, **options)
        self.fake = self.engine.runner
        self.checked = CheckedEngine(self.engine, eos)
        SEEN["schedules"] += 1

    @rule(seed=st.integers(0, 1 << 20), count=st.integers(1, 6))
    def add(self, seed: int, count: int) -> None:
        """Some requests at once. One number stands for all that is drawn of them: cheaper than a choice for each."""
        draw = Random(seed)
        config = self.engine.config
        for _ in range(count):
            most = min(config.max_model_len, self.engine.pool.capacity + 1)
            length = draw.randint(1, max(1, (most - 1) // draw.choice([1, 2, 4])))
            if not config.enable_chunked_prefill:
                length = min(length, config.max_num_batched_tokens)
            max_tokens = draw.choice([None, draw.randint(1, most - length)])
            params = SamplingParams(
                temperature=draw.choice([0.0, 1.0]),
                max_tokens=max_tokens,
                min_tokens=draw.randint(0, min(max_tokens or 9, 3)),
                seed=draw.choice([None, 0, 7]),
                ignore_eos=draw.random() < 0.5,
                stop_token_ids=draw.choice([(), (draw.randrange(VOCAB_SIZE),)]),
            )
            priority = draw.randint(-2, 2) if config.scheduling_policy == "priority" else 0
            salt = draw.choice([None, None, "a"]) if config.enable_prefix_caching else None
            try:
                self.checked.add(self._prompt(draw, length), params, priority=priority, cache_salt=salt)
            except QueueFull:
                # Whoever was preempted waits again without being asked, so there may be more than the limit.
                assert len(self.engine.scheduler.waiting) >= config.max_num_queued_reqs
                SEEN["refusals"] += 1

    def _prompt(self, draw: Random, length: int) -> list[int]:
        """Random tokens; with a cache most begin as what was said before did."""
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(length)]
        if self.engine.cache is not None and self.checked.requests and draw.random() < 0.7:
            said = draw.choice(list(self.checked.requests.values())).token_ids
            common = min(draw.choice([length, draw.randint(0, length)]), len(said))
            prompt[:common] = said[:common]
        return prompt

    @precondition(lambda self: self.engine.cache is not None)
    @rule()
    def empty_the_cache(self) -> None:
        self.checked.reset_prefix_cache()

    @rule(more=st.booleans())
    def tell_whether_more_may_come(self, more: bool) -> None:
        self.engine.more_may_come = more

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.engine.clock.advance(seconds)

    @rule(over=st.integers(1, 9), seed=st.integers(0, 1 << 20))
    def add_what_cannot_fit(self, over: int, seed: int) -> None:
        most = min(self.engine.config.max_model_len, self.engine.pool.capacity + 1)
        length = Random(seed).randint(0, most + 3)
        with pytest.raises(UsageError):
            self.engine.add_request([0] * length, SamplingParams(max_tokens=max(1, most - length + over)))
        SEEN["refusals"] += 1
        self.checked.check_state()

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            SEEN["idle_slots"] += len(self.checked.step().held)
            SEEN["steps"] += 1

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.checked.abort(data.draw(st.sampled_from(list(self.engine.requests))))
        SEEN["aborts"] += 1

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data())
    def abort_while_the_step_runs(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(list(self.engine.requests)))

        def during(plan: StepPlan) -> None:
            assert self.engine.abort(victim)

        self.fake.during = during
        self.checked.step()
        self.fake.during = lambda plan: None
        SEEN["aborts"] += 1

    @precondition(lambda self: self.engine.requests)
    @rule()
    def fail(self) -> None:
        def during(plan: StepPlan) -> None:
            raise RunnerFailed

        self.fake.during = during
        self.checked.failing_step(RunnerFailed)
        self.fake.during = lambda plan: None
        SEEN["failures"] += 1

    def teardown(self) -> None:
        if hasattr(self, "checked"):
            SEEN["steps"] += self.checked.drain()
            counts = self.checked.num_preempted.values()
            SEEN["preemptions"] += sum(counts)
            SEEN["most_preemptions"] = max([SEEN["most_preemptions"], *counts])
            SEEN["displaced"] += sum(request.num_displaced for request in self.checked.requests.values())
            SEEN["swapped_blocks"] += self.engine.host.restored if self.engine.host else 0
            SEEN["cached_tokens"] += self.checked.told_cached
            SEEN["evicted"] += self.engine.pool.evicted


def run(max_examples: int, fixed: bool, ways: list[dict[str, Any]]) -> dict[str, int]:
    """``fixed``: the same schedules every time. ``ways``: options held fast, for as many examples each."""
    SEEN.update(dict.fromkeys(SEEN, 0))
    quiet = settings(
        max_examples=max_examples // len(ways),
        stateful_step_count=30,
        deadline=None,
        derandomize=fixed,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        for way in ways:
            FORCED.clear()
            FORCED.update(way)
            with patch.object(policies, "WARMING_TOKENS", 1):  # the prompts are short
                run_state_machine_as_test(EngineMachine, settings=quiet)
    finally:
        FORCED.clear()
    return dict(SEEN)


def test_random_schedules() -> None:
    seen = run(500, fixed=True, ways=WAYS)
    # Nothing is shown by schedules in which nothing happens.
    least = {"steps": 2000, "preemptions": 25, "most_preemptions": 2, "aborts": 50, "failures": 30, "refusals": 50}
    least |= {"swapped_blocks": 20, "displaced": 3, "idle_slots": 5, "cached_tokens": 50, "evicted": 200}
    assert {name: seen[name] for name, count in least.items() if seen[name] < count} == {}


@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_ten_thousand_random_schedules(proof) -> None:
    seen = run(10_000, fixed=False, ways=[{}])
    assert seen["schedules"] >= 10_000
    figures = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in seen.items())
    proof.report("random schedules keep every rule after every step", figures)
