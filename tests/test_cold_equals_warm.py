"""With and without prefix caching the same tokens, on a tiny real model, whatever is evicted, preempted or swapped.

Prompts share heads with each other and with answers given before. The cold engine has room for everybody.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from tests.proof.same_tokens import Comparison, Drawn
from tests.proof.workloads import last_logits
from tests.tiny_llm import open_llm
from workbench import LLM, SamplingParams
from workbench.engine import policies
from workbench.engine.engine import Engine

VOCAB = 60
SEEN = ("schedules", "hits", "evicted", "preempted", "aborts", "swapped")


class Job(NamedTuple):
    prompt: list[int]
    params: SamplingParams
    salt: str | None


class Pair(NamedTuple):
    """Two caches over the same weights: what runs on the one does not disturb the other."""

    warm: LLM
    cold: LLM


@pytest.fixture(scope="module")
def pairs(folder: Path) -> dict[int, Pair]:
    return open_pairs(open_llm(folder))


def open_pairs(first: LLM) -> dict[int, Pair]:
    """By block size."""
    opened = {}
    for size in (1, 4, 16):
        shape = {"block_size": size, "num_kv_blocks": 1024 // size, "max_num_seqs": 16, "max_model_len": 120}
        warm, cold = (LLM(weights_of=first, enable_prefix_caching=on, **shape) for on in (True, False))
        assert cold.engine.cache is None
        opened[size] = Pair(warm, cold)
    return opened


def warm_engine(pair: Pair, size: int, draw: Random) -> Engine:
    chunked = draw.random() < 0.8
    options: dict[str, Any] = {
        "enable_prefix_caching": True,
        "prefix_index": draw.choice(["radix", "hash"]),
        "eviction_policy": draw.choice(["lru", "lru", "lfu", "fifo"]),
        "prefix_partial_reuse": size > 1 and draw.random() < 0.5,
        "num_kv_blocks": draw.choice([-(-60 // size), -(-80 // size), -(-200 // size)]),
        "max_num_batched_tokens": draw.choice([7, 16, 40]) if chunked else 60,
        "max_num_seqs": draw.choice([2, 4, 8]),
        "batching": draw.choice(["continuous", "continuous", "prefill-first", "static"]),
        "scheduling_policy": draw.choice(["fcfs", "shortest-prefill-first", "lpm"]),
        "enable_chunked_prefill": chunked,
    }
    if draw.random() < 0.3:
        options |= {"preemption_mode": "swap", "num_host_kv_blocks": draw.choice([2, 64])}
    return pair.warm.new_engine(**options)


def jobs(draw: Random) -> list[Job]:
    heads = [[draw.randrange(VOCAB) for _ in range(draw.randint(1, 40))] for _ in range(3)]
    found = []
    for number in range(draw.randint(3, 10)):
        head = draw.choice(heads)
        prompt = head[: draw.choice([len(head), draw.randint(1, len(head))])]
        prompt = prompt + [draw.randrange(VOCAB) for _ in range(draw.choice([0, 0, 1, 5]))]
        count = draw.randint(1, 12)
        n = draw.choice([1, 1, 1, 3])
        params = SamplingParams(temperature=number % 2, seed=number, max_tokens=count, ignore_eos=True, n=n)
        found.append(Job(prompt, params, draw.choice([None, None, "tenant"])))
    return found


def cold_answers(pair: Pair, asked: list[Job]) -> list[list[list[int]]]:
    outputs = pair.cold.generate([job.prompt for job in asked], [job.params for job in asked], use_tqdm=False)
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


def schedule(pair: Pair, size: int, seed: int, seen: dict[str, int], tally: Comparison) -> None:
    draw = Random(seed)
    engine, asked = warm_engine(pair, size, draw), jobs(draw)
    expected = cold_answers(pair, asked)
    for turn in range(2):
        if turn:  # the next turn of every talk: prompt, first answer and a word more
            asked = [job._replace(prompt=[*job.prompt, *said[0], 1]) for job, said in zip(asked, expected, strict=True)]
            most = engine.config.max_num_batched_tokens if not engine.config.enable_chunked_prefill else 999
            room = min(engine.pool.capacity, most)
            asked = [job for job in asked if len(job.prompt) + (job.params.max_tokens or 0) <= room]
            if not asked:
                break
            expected = cold_answers(pair, asked)
        waiting, groups = list(range(len(asked))), {}
        while waiting or engine.has_unfinished():
            engine.more_may_come = bool(waiting)
            if waiting and draw.random() < 0.6:
                job = asked[number := waiting.pop(0)]
                groups[number] = engine.requests[engine.add_request(job.prompt, job.params, cache_salt=job.salt)].group
            if engine.requests and draw.random() < 0.03:
                engine.abort(draw.choice(list(engine.requests)))
                seen["aborts"] += 1
            trace = engine.step()
            engine.pool.check()
            seen["hits"] += trace.cached_tokens
            seen["evicted"] += trace.blocks["evicted"]
            seen["preempted"] += len(trace.preempted)
            seen["swapped"] += trace.blocks["swapped_in"]
        for number, group in groups.items():
            for answer, request in zip(expected[number], group, strict=True):
                told = request.output_token_ids
                wanted = answer[: len(told)] if request.finish_reason == "abort" else answer
                name = f"schedule {seed}, block size {size}, request {number}"
                params = request.params
                drawn = None if params.greedy else Drawn(params.temperature, request.seed)
                tally.compare(name, asked[number].prompt, wanted, told, last_logits(pair.cold), drawn)
        assert engine.pool.num_available == engine.pool.num_blocks
    seen["schedules"] += 1


def run(pairs: dict[int, Pair], seeds: range, tally: Comparison) -> dict[str, int]:
    seen = dict.fromkeys(SEEN, 0)
    torch.set_num_threads(1)
    for seed in seeds:
        size = (1, 4, 16)[seed % 3]
        with patch.object(policies, "WARMING_TOKENS", 8):  # the prompts are short
            schedule(pairs[size], size, seed, seen, tally)
    return seen


def shown(seen: dict[str, int], tally: Comparison) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in seen.items()) + f": {tally.figures()}"


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_cold_equals_warm(pairs: dict[int, Pair], first: int) -> None:
    tally = Comparison()
    seen = run(pairs, range(first, first + 60), tally)
    assert all(seen.values()), seen
    assert tally.tokens > 3000 and len(tally.ties) < 3, tally.figures()


@pytest.mark.proof
@pytest.mark.timeout(20_000)
def test_cold_equals_warm_in_ten_thousand_schedules(pairs: dict[int, Pair], proof: Any) -> None:
    tally = Comparison()
    seen = run(pairs, range(1000, 11_000), tally)
    assert all(seen.values()), seen
    proof.report("cold = warm, token for token", shown(seen, tally))
