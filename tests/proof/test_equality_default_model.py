"""The default model gives the same tokens however a workload is served; see test_equality.py for the tiny one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.conftest import open_smollm2
from tests.proof.prompts import ALL, SHORT
from tests.proof.same_tokens import Comparison, greedy, seeded
from tests.proof.workloads import Job, Served, compare_all, serve, serve_alone, smallest_pool, ways
from workbench import LLM


def jobs_of(llm: LLM, prompts: list[str | list[int]], count: int) -> list[Job]:
    assert llm.tokenizer is not None
    ids = [prompt if isinstance(prompt, list) else llm.tokenizer.encode(prompt) for prompt in prompts]
    return [Job(prompt, seeded(count, seed=i) if i % 2 else greedy(count)) for i, prompt in enumerate(ids)]


def preempted(jobs: list[Job], alone: Served, block_size: int, tally: Comparison) -> int:
    blocks = smallest_pool(jobs, block_size, spare=max(1, 24 // block_size))
    llm = open_smollm2(block_size=block_size, num_kv_blocks=blocks)
    served = serve(llm, jobs)
    compare_all("preempted", jobs, alone, served, llm, tally)
    return sum(served.preemptions)


@pytest.mark.slow
def test_short_prompts_however_served(smollm2: LLM, proof: Any) -> None:
    jobs = jobs_of(smollm2, SHORT, 12)
    alone, tally = serve_alone(smollm2, jobs), Comparison()
    for block_size, names in ((16, ("shuffled", "budget 17")), (1, ("batched",)), (17, ("staggered arrivals",))):
        for name, options, how in ways(jobs, block_size):
            if name in names:
                llm = open_smollm2(block_size=block_size, num_kv_blocks=1200 // block_size, **options)
                compare_all(name, jobs, alone, serve(llm, jobs, **how), llm, tally)
    preemptions = preempted(jobs, alone, 1, tally)
    assert preemptions > 3
    figures = f"{preemptions} preemptions: {tally.figures()}"
    proof.report("12 short prompts of the default model, however served", figures)


@pytest.mark.proof
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", ["cpu", "sdpa", "torch_native"])
def test_forty_prompts_however_served(smollm2: LLM, backend: str, proof: Any) -> None:
    jobs = jobs_of(smollm2, ALL, 12)
    alone, tally, preemptions = serve_alone(smollm2, jobs), Comparison(), 0
    for block_size in (1, 16, 17):
        for name, options, how in ways(jobs, block_size):
            # Each way takes most of a minute, so all are shown once and the plain ones for every size and backend.
            if (block_size, backend) != (16, "cpu") and name not in ("batched", f"budget {block_size + 1}"):
                continue
            if name == "budget 2" or (name == "budget 1" and block_size == 1):
                continue
            blocks = 8192 // block_size
            llm = open_smollm2(block_size=block_size, num_kv_blocks=blocks, attention_backend=backend, **options)
            compare_all(name, jobs, alone, serve(llm, jobs, **how), llm, tally)
        preemptions += preempted(jobs, alone, block_size, tally)
    assert preemptions > 10
    figures = f"{preemptions} preemptions: {tally.figures()}"
    proof.report(f"40 prompts of the default model, however served, {backend}", figures)
