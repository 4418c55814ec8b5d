"""Several answers to one prompt under every policy: shared blocks, copies, preemptions, swaps and failures at once."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from tests.engine.paged_fake import answer_alone, open_engine
from workbench.engine import policies
from workbench.engine.request import Request
from workbench.plan import StepPlan
from workbench.sampling_params import SamplingParams


class RunnerFailed(RuntimeError):
    pass


def small_engine(draw: Random, batching: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "block_size": draw.choice([1, 2, 3, 4, 7]),
        "num_kv_blocks": draw.choice([3, 6, 8, 12]),
        "max_model_len": 25,
        "max_num_batched_tokens": draw.choice([3, 5, 8, 17]),
        "max_num_seqs": draw.choice([2, 3, 8]),
        "scheduling_policy": draw.choice(["fcfs", "priority", "shortest-prefill-first"]),
        "enable_chunked_prefill": draw.choice([True, True, False]),
        "batching": batching,
    }
    if host := draw.choice([None, 2, 20]):
        options |= {"preemption_mode": "swap", "num_host_kv_blocks": host}
    return options


CACHES: list[dict[str, Any]] = [
    {},
    {"enable_prefix_caching": True},
    {"enable_prefix_caching": True, "prefix_index": "hash", "eviction_policy": "lfu"},
]


def run(seed: int, batching: str, cache: dict[str, Any], seen: dict[str, int]) -> None:
    draw = Random(seed)
    options = small_engine(draw, batching) | cache
    if cache and options["scheduling_policy"] == "shortest-prefill-first":
        options["scheduling_policy"] = "lpm"
    engine = open_engine(**options)
    fails = draw.random() < 0.3
    requests: list[Request] = []

    def fail(plan: StepPlan) -> None:
        if fails and draw.random() < 0.1:
            raise RunnerFailed

    def step() -> None:
        with suppress(RunnerFailed):
            trace = engine.step()
            told = [skip["request_id"] for skip in trace.skipped]
            assert len(told) == len(set(told))
            seen["shared"] += trace.blocks["shared"]
            seen["cached"] += trace.cached_tokens
        engine.pool.check()
        if engine.host is not None:
            engine.host.check()

    engine.runner.before = fail
    engine.more_may_come = True
    most = min(options["max_model_len"], engine.pool.capacity + 1)
    for _ in range(draw.randint(5, 20)):
        if draw.random() < 0.5:
            longest = (
                most - 1 if options["enable_chunked_prefill"] else min(most - 1, options["max_num_batched_tokens"])
            )
            length = draw.randint(1, longest)
            params = SamplingParams(max_tokens=draw.randint(1, most - length), seed=7, n=draw.randint(1, 5))
            priority = draw.randint(-2, 2) if options["scheduling_policy"] == "priority" else 0
            prompt = [draw.randrange(40) for _ in range(length)]
            if cache and requests and draw.random() < 0.7:
                said = draw.choice(requests).token_ids[: draw.randint(1, length)]
                prompt[: len(said)] = said
            name = engine.add_request(prompt, params, priority=priority)
            requests += engine.requests[name].group
        if cache and draw.random() < 0.05:
            engine.reset_prefix_cache()
        if engine.requests and draw.random() < 0.1:
            engine.abort(draw.choice(list(engine.requests)))
        for _ in range(draw.randint(1, 5)):
            step()
    engine.more_may_come = False
    for _ in range(100 * most * (1 + len(requests))):
        if not engine.has_unfinished():
            break
        step()
    assert not engine.has_unfinished(), f"seed {seed}: {options}"
    assert engine.pool.num_available == engine.pool.num_blocks
    assert engine.host is None or engine.host.num_free == engine.host.num_blocks
    for request in requests:
        alone, _ = answer_alone(request.prompt_token_ids, request.params, most, (), request.seed)
        told = request.output_token_ids
        assert told == alone[: len(told)] and (told == alone or request.finish_reason == "abort"), f"seed {seed}"
        seen["preemptions"] += request.num_preemptions
    seen["swapped"] += engine.host.restored if engine.host else 0


@pytest.mark.parametrize("cache", CACHES, ids=["no cache", "radix", "hash"])
@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static", "dynamic"])
def test_forks_answer_as_they_would_alone(batching: str, cache: dict[str, Any]) -> None:
    seen = {"shared": 0, "preemptions": 0, "swapped": 0, "cached": 0 if cache else 6}
    for seed in range(40):
        with patch.object(policies, "WARMING_TOKENS", 1):  # the prompts are short
            run(seed, batching, cache, seen)
    assert min(seen.values()) > 5, f"too little happened to show anything: {seen}"
