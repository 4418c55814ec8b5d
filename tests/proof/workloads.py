"""One workload served in many ways: alone, batched, shuffled, under every budget, block size and shortage of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import torch

from tests.proof.same_tokens import Comparison
from workbench import LLM, SamplingParams
from workbench.plan import StepPlan, StepResult


class Job(NamedTuple):
    prompt: list[int]
    params: SamplingParams


class Served(NamedTuple):
    outputs: list[list[int]]
    preemptions: list[int]
    """Of each job."""


def serve(llm: LLM, jobs: list[Job], order: list[int] | None = None, staggered: bool = False) -> Served:
    """All jobs through one engine, in ``order``; ``staggered``: one arrives every second step. Checks the pool."""
    engine = llm.engine
    order = list(range(len(jobs))) if order is None else order
    requests: dict[int, Any] = {}
    waiting, steps = list(order), 0
    while waiting or engine.has_unfinished():
        while waiting and (not staggered or steps % 2 == 0 or not engine.has_unfinished()):
            index = waiting.pop(0)
            requests[index] = engine.requests[engine.add_request(jobs[index].prompt, jobs[index].params)]
            if staggered:
                break
        engine.step()
        engine.pool.check()
        steps += 1
    assert engine.pool.num_available == engine.pool.num_blocks
    ordered = [requests[index] for index in range(len(jobs))]
    return Served([request.output_token_ids for request in ordered], [request.num_preemptions for request in ordered])


def serve_alone(llm: LLM, jobs: list[Job]) -> Served:
    """One job after the other, each with the engine to itself."""
    served = [serve(llm, [job]) for job in jobs]
    return Served([one.outputs[0] for one in served], [one.preemptions[0] for one in served])


def last_logits(llm: LLM) -> Callable[[list[int]], torch.Tensor]:
    return lambda token_ids: llm.runner.logits(token_ids)[-1]


def ways(jobs: list[Job], block_size: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, engine options, options of `serve`) for every way to serve ``jobs`` that must not change a token."""
    shuffled = list(range(len(jobs)))
    Random(block_size).shuffle(shuffled)
    yield "batched", {}, {}
    yield "shuffled", {}, {"order": shuffled}
    yield "staggered arrivals", {}, {"staggered": True}
    for budget in sorted({1, max(1, block_size - 1), block_size, block_size + 1}):
        yield f"budget {budget}", {"max_num_batched_tokens": budget}, {}
    yield "everything in one step", {"max_num_batched_tokens": sum(len(job.prompt) for job in jobs)}, {}
    yield "two at a time", {"max_num_seqs": 2}, {}
    yield "prompts cut at 7", {"long_prefill_token_threshold": 7}, {}


def smallest_pool(jobs: list[Job], block_size: int, spare: int = 1) -> int:
    """Blocks that just hold the largest job, and a few more: everybody else is in its way."""
    longest = max(len(job.prompt) + (job.params.max_tokens or 0) - 1 for job in jobs)
    return -(-longest // block_size) + spare


def compare_all(name: str, jobs: list[Job], expected: Served, got: Served, llm: LLM, tally: Comparison) -> None:
    for index, job in enumerate(jobs):
        where = f"{name}, job {index}"
        tally.compare(where, job.prompt, expected.outputs[index], got.outputs[index], last_logits(llm))


def poison_unused_kv(llm: LLM) -> None:
    """From now on, before every step, each row that no running request has written is NaN: free blocks, tails of used
    ones, and what earlier owners left."""
    rows, execute = llm.runner.cache.storage.flatten(1, 2), llm.runner.execute
    block_size = llm.config.block_size

    def poisoned(plan: StepPlan) -> StepResult:
        unwritten = torch.ones(rows.shape[1], dtype=torch.bool)
        for request in llm.engine.scheduler.running:
            table, computed = request.block_table, range(request.num_computed_tokens)
            unwritten[[table[i // block_size] * block_size + i % block_size for i in computed]] = False
        rows[:, unwritten] = float("nan")
        return execute(plan)

    llm.runner.execute = poisoned  # type: ignore[method-assign]
