"""A crowded engine: random arrivals, aborts, failures and preemptions, every step held to the rules."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

from tests.engine.checked import CheckedEngine
from tests.engine.paged_fake import VOCAB_SIZE, open_engine
from workbench.engine import policies
from workbench.engine.admission import QueueFull
from workbench.plan import StepPlan
from workbench.sampling_params import SamplingParams

SMALL = {"num_kv_blocks": 9, "block_size": 3, "max_model_len": 28, "max_num_batched_tokens": 7, "max_num_seqs": 3}
SWAP = {"preemption_mode": "swap"}
PRIORITY = {"scheduling_policy": "priority", "num_kv_blocks": 16}
STATIC = {"batching": "static"}
FEW_MAY_QUEUE = {**STATIC, "max_num_queued_reqs": 2}
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 12}
LONG = {"num_kv_blocks": 30, "block_size": 2, "max_model_len": 60, "max_num_batched_tokens": 6, "max_num_seqs": 4}
FAILING = {**SWAP, "failing": True}
LPM = {"scheduling_policy": "lpm"}
RADIX = {"enable_prefix_caching": True}
HASH = {**RADIX, "prefix_index": "hash", "eviction_policy": "lfu"}
PARTIAL = {"prefix_partial_reuse": True}
CACHING: list[dict[str, Any]] = [
    RADIX,
    {**RADIX, "num_kv_blocks": 60},
    HASH,
    {**HASH, **SWAP},
    {**RADIX, **SWAP, "failing": True},
    {**RADIX, **WHOLE},
    {**RADIX, **PRIORITY},
    {**RADIX, **STATIC},
    {**RADIX, **LPM},
    {**HASH, **LPM, **STATIC, "num_kv_blocks": 30},
    {**RADIX, **LPM, **SWAP, "failing": True},
    {**HASH, "block_size": 1, "num_kv_blocks": 28, "eviction_policy": "fifo"},
    {**RADIX, "block_size": 1, "num_kv_blocks": 28, "batching": "prefill-first"},
    {**RADIX, **PARTIAL},
    {**RADIX, **PARTIAL, "num_kv_blocks": 60},
    {**HASH, **PARTIAL, "num_kv_blocks": 60},
    {**HASH, **PARTIAL, **SWAP, "failing": True},
    {**RADIX, **PARTIAL, **SWAP, **LPM, "block_size": 5, "num_kv_blocks": 6},
    {**RADIX, **PARTIAL, **WHOLE, "block_size": 7, "num_kv_blocks": 4},
    {**HASH, **PARTIAL, **PRIORITY, "failing": True},
    {**RADIX, **PARTIAL, **PRIORITY, **SWAP, "max_num_batched_tokens": 20, "max_num_seqs": 6},
    {**RADIX, **PARTIAL, **STATIC, "num_kv_blocks": 12},
]
KINDS: list[dict[str, Any]] = [{}, SWAP, FAILING, PRIORITY, STATIC, FEW_MAY_QUEUE, WHOLE, LONG]


class RunnerFailed(RuntimeError):
    pass


def exercise(seed: int, failing: bool = False, **options: Any) -> None:
    """`crowd` where a short head is worth waiting for, too: the prompts here are shorter than ``WARMING_TOKENS``."""
    with patch.object(policies, "WARMING_TOKENS", 1):
        crowd(seed, failing, **options)


def crowd(seed: int, failing: bool, **options: Any) -> None:
    """A crowded engine with arrivals, aborts and preemptions, every step checked, until all is done.

    ``failing``: now and then the runner fails before it has done anything.
    """
    draw = Random(seed)
    options = {**SMALL, **options}
    engine = open_engine((5,), **options)
    fake, checked = engine.runner, CheckedEngine(engine, (5,))
    engine.more_may_come = True
    longest = min(15, options["max_num_batched_tokens"] if "enable_chunked_prefill" in options else 15)

    def fail(plan: StepPlan) -> None:
        raise RunnerFailed

    for _ in range(50):
        if draw.random() < 0.6:
            length = draw.randint(1, longest)
            most = draw.choice([None, draw.randint(1, 28 - length)])
            params = SamplingParams(max_tokens=most, min_tokens=draw.choice([0, 0, min(most or 3, 3)]))
            priority = draw.randint(0, 3) if options.get("scheduling_policy") == "priority" else 0
            prompt = [draw.randrange(VOCAB_SIZE) for _ in range(length)]
            salt = None
            if engine.cache is not None:
                salt = draw.choice([None, None, "a"])
                if checked.requests and draw.random() < 0.7:
                    said = draw.choice(list(checked.requests.values())).token_ids[
                        : draw.choice([length, draw.randint(0, length)])
                    ]
                    prompt[: len(said)] = said
            with suppress(QueueFull):
                checked.add(prompt, params, priority=priority, cache_salt=salt)
        if engine.requests and draw.random() < 0.15:
            checked.abort(draw.choice(list(engine.requests)))
        if failing and draw.random() < 0.3:
            fake.before = fail
            checked.failing_step(RunnerFailed)
            fake.before = lambda plan: None
        if engine.cache is not None and draw.random() < 0.02:
            checked.reset_prefix_cache()
        checked.step()
    checked.drain()
    assert sum(checked.num_preempted.values()) > 3 or "batching" in options or engine.cache is not None
