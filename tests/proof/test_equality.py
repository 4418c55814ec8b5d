"""The same workload gives the same tokens however it is served: alone, batched, chunked, preempted again and again.

On a tiny random model whose logits are well spread; greedy and seeded requests side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch

from tests.model.tiny import make_tiny
from tests.proof.same_tokens import Comparison, greedy, seeded
from tests.proof.workloads import Job, Served, compare_all, poison_unused_kv, serve, serve_alone, smallest_pool, ways
from workbench import LLM

BLOCK_SIZES = (1, 16, 17)
BACKENDS = ("torch_native", "sdpa", "cpu")
LENGTHS = (1, 2, 15, 16, 17, 33, 34, 51)
OUTPUTS = (24, 17, 16, 15, 20, 24, 1, 18)
FAMILIES = ("smollm2", "mistral")
"""9 query heads on 3 KV heads with full attention; 4 on 2 with a window of 7."""

CASES = [("smollm2", backend, size) for backend in BACKENDS for size in BLOCK_SIZES]
CASES += [("mistral", "torch_native", 17), ("mistral", "sdpa", 16), ("mistral", "cpu", 16)]
TALLY = Comparison()
"""Of all tests of this file; the last one tells it."""


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Lengths around the block sizes; half greedy, half seeded, some of these with filters."""
    draw = Random(5)
    made = []
    for i, (length, count) in enumerate(zip(LENGTHS, OUTPUTS, strict=True)):
        filters: dict[str, Any] = {"top_k": 40, "top_p": 0.95} if i % 4 == 3 else {}
        params = seeded(count, seed=i, **filters) if i % 2 else greedy(count)
        made.append(Job([draw.randrange(3, 211) for _ in range(length)], params))
    return made


def open_llm(folder: Path, backend: str, block_size: int, **options: Any) -> LLM:
    sizes = {"num_kv_blocks": 512 // block_size + 8, "max_model_len": 128}
    named = {"model": str(folder), "device": "cpu", "attention_backend": backend, "block_size": block_size}
    # What is served twice must be computed twice here; tests/test_cold_equals_warm.py compares what is cached.
    return LLM(**{**named, **sizes, "enable_prefix_caching": False, **options})


def zip_outputs(things: list[Any]) -> Iterator[tuple[Any, int]]:
    return zip(things, OUTPUTS, strict=True)


class Model(NamedTuple):
    folder: Path
    alone: Served
    """The reference: each job by itself, whole prompts, the plain gather."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, jobs: list[Job]) -> dict[str, Model]:
    made = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        make_tiny(family, folder, seed=2)
        served = serve_alone(open_llm(folder, "torch_native", 16), jobs)
        assert sum(served.preemptions) == 0
        assert min(len(set(out)) for out in served.outputs if len(out) > 8) > 5, "an answer that repeats shows little"
        made[family] = Model(folder, served)
    return made


@pytest.mark.parametrize(("family", "backend", "block_size"), CASES)
def test_every_way_of_serving_gives_the_same_tokens(
    models: dict[str, Model], jobs: list[Job], family: str, backend: str, block_size: int
) -> None:
    folder, alone = models[family]
    # The first tokens of an answer do not depend on how long it may become, so half of each is enough here.
    jobs = [job._replace(params=replace(job.params, max_tokens=1 + count // 2)) for job, count in zip_outputs(jobs)]
    alone = Served([out[: 1 + count // 2] for out, count in zip_outputs(alone.outputs)], alone.preemptions)
    llm = open_llm(folder, backend, block_size)
    compare_all("alone", jobs, alone, serve_alone(llm, jobs), llm, TALLY)
    for name, options, how in ways(jobs, block_size):
        llm = open_llm(folder, backend, block_size, **options)
        compare_all(name, jobs, alone, serve(llm, jobs, **how), llm, TALLY)


@pytest.mark.parametrize(("family", "backend", "block_size"), CASES)
@pytest.mark.parametrize("budget", [16, 2048])
def test_preempted_again_and_again_gives_the_same_tokens(
    models: dict[str, Model], jobs: list[Job], family: str, backend: str, block_size: int, budget: int
) -> None:
    """The pool holds little more than the largest job."""
    folder, alone = models[family]
    blocks = smallest_pool(jobs, block_size, spare={1: 3, 16: 1, 17: 1}[block_size])
    llm = open_llm(folder, backend, block_size, num_kv_blocks=blocks, max_num_batched_tokens=budget)
    preemptions = [0] * len(jobs)
    for order in (None, [7, 5, 4, 0, 3, 1, 2, 6]):
        served = serve(llm, jobs, order)
        preemptions = [sum(pair) for pair in zip(preemptions, served.preemptions, strict=True)]
        compare_all("preempted", jobs, alone, served, llm, TALLY)
    assert sum(preemptions) >= 3 and max(preemptions) >= 2, f"too few preemptions to show anything: {preemptions}"


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_preempted_at_every_length(models: dict[str, Model], block_size: int) -> None:
    """Equal short requests that outgrow a pool for two: preempted at, before and behind every edge of a block."""
    folder = models["smollm2"].folder
    jobs = [Job([3 + i] * (1 + i % 4), seeded(14, seed=i) if i % 2 else greedy(14)) for i in range(6)]
    expected = serve_alone(open_llm(folder, "sdpa", block_size), jobs)
    llm = open_llm(folder, "sdpa", block_size, num_kv_blocks=smallest_pool(jobs, block_size, spare=8 // block_size))
    served = serve(llm, jobs)
    compare_all("preempted", jobs, expected, served, llm, TALLY)
    assert max(served.preemptions) >= 3, served.preemptions


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_poison_in_unused_kv_changes_nothing(
    models: dict[str, Model], jobs: list[Job], family: str, backend: str
) -> None:
    """Before every step each row that no running request has written is NaN: free blocks, tails of used ones, and
    what earlier owners left."""
    folder, alone = models[family]
    llm = open_llm(folder, backend, 16, num_kv_blocks=smallest_pool(jobs, 16), max_num_batched_tokens=24)
    poison_unused_kv(llm)
    served = serve(llm, jobs)
    assert llm.runner.cache.storage.isnan().any() and sum(served.preemptions) > 0
    compare_all("poisoned", jobs, alone, served, llm, TALLY)


def test_two_runs_give_the_same_steps(models: dict[str, Model], jobs: list[Job]) -> None:
    """Three times in one process: plans and tokens are identical to the last."""

    def log() -> list[tuple[Any, ...]]:
        llm = open_llm(models["smollm2"].folder, "sdpa", 16, num_kv_blocks=smallest_pool(jobs, 16))
        steps: list[tuple[Any, ...]] = []
        llm.engine.listeners.append(
            lambda t: steps.append((t.scheduled, t.skipped, t.preempted, t.blocks, t.new_tokens, t.flops, t.bytes))
        )
        serve(llm, jobs)
        return steps

    first = log()
    assert all(log() == first for _ in range(2))


def test_a_flip_without_a_tie_is_not_excused() -> None:
    """The comparison itself: it must fail, excuse and count as it says."""
    logits = torch.zeros(10)
    logits[3], logits[4], logits[5] = 2.0, 2.0 - 5e-5, 1.0
    tally = Comparison()
    tally.compare("tie", [1], [3, 7], [4, 8], lambda token_ids: logits)
    assert tally.tokens == 0 and len(tally.ties) == 1 and "1 flips excused" in tally.figures()
    for got in ([5, 7], [3], [3, 7, 7]):
        with pytest.raises(AssertionError):
            Comparison().compare("no tie", [1], [3, 7], got, lambda token_ids: logits)
    logits[4] = 1.9
    with pytest.raises(AssertionError, match="output token 0 is 4 instead of 3"):
        Comparison().compare("no tie", [1], [3, 7], [4, 7], lambda token_ids: logits)


def test_flips_are_counted(proof: Any) -> None:
    """Last in this file: tells what the tests before it have compared."""
    if TALLY.tokens:
        proof.report("tokens of a tiny model, however it is served", TALLY.figures())
