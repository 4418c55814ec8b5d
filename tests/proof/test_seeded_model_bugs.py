"""Bugs put into the model's side on purpose: the comparisons that the true code passes must catch every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.model.tiny import make_tiny
from tests.proof.same_tokens import Comparison, greedy, seeded
from tests.proof.workloads import Job, Served, compare_all, poison_unused_kv, serve, serve_alone, smallest_pool
from workbench import LLM
from workbench.attention import sdpa
from workbench.engine.request import Request
from workbench.engine.scheduler import Scheduler
from workbench.model import sampling
from workbench.model.batch import Batch
from workbench.model.runner import ModelRunner
from workbench.plan import StepPlan

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistral")
    make_tiny("mistral", path, seed=2, sliding_window=24)
    return path


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    draw = Random(1)
    lengths = (3, 15, 16, 30, 41, 8)
    prompts = [[draw.randrange(3, 211) for _ in range(length)] for length in lengths]
    return [Job(prompt, seeded(20, seed=i) if i % 2 else greedy(20)) for i, prompt in enumerate(prompts)]


def open_llm(folder: Path, **options: Any) -> LLM:
    named = {"model": str(folder), "device": "cpu", "attention_backend": "sdpa", "block_size": BLOCK_SIZE}
    sizes = {"num_kv_blocks": 64, "max_model_len": 128, "enable_prefix_caching": False}
    return LLM(**{**named, **sizes, **options})


@pytest.fixture(scope="module")
def alone(folder: Path, jobs: list[Job]) -> Served:
    """The answers of the true code, made before any bug is in."""
    return serve_alone(open_llm(folder), jobs)


def check(folder: Path, jobs: list[Job], alone: Served) -> None:
    """Batched, in chunks, preempted, with everything unused poisoned."""
    blocks = smallest_pool(jobs, BLOCK_SIZE)
    for options in ({"max_num_batched_tokens": 19}, {"num_kv_blocks": blocks}):
        llm = open_llm(folder, **options)
        poison_unused_kv(llm)
        served = serve(llm, jobs)
        compare_all("served", jobs, alone, served, llm, Comparison())
    assert max(served.preemptions) > 0


def test_the_true_code_passes(folder: Path, jobs: list[Job], alone: Served) -> None:
    check(folder, jobs, alone)


Patch = Callable[[pytest.MonkeyPatch], None]


def no_causal_mask(patch: pytest.MonkeyPatch) -> None:
    chunk = sdpa._chunk

    def open_to_the_future(*args: Any) -> Any:
        made = chunk(*args)
        return made._replace(bias=torch.zeros(made.end - made.begin, len(made.slots)))

    patch.setattr(sdpa, "_chunk", open_to_the_future)


def causal_from_the_wrong_corner(patch: pytest.MonkeyPatch) -> None:
    """A chunk that continues a prompt is masked as if it began it."""
    chunk = sdpa._chunk
    patch.setattr(sdpa, "_chunk", lambda *args: chunk(*args)._replace(bias=None))


def window_one_too_wide(patch: pytest.MonkeyPatch) -> None:
    prepare = sdpa.Sdpa.prepare
    patch.setattr(
        sdpa.Sdpa, "prepare", lambda self, batch, window, dtype: prepare(self, batch, window and window + 1, dtype)
    )


def page_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """The last row of a block is looked up in the next block."""

    def slots(batch: Any, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        columns = torch.clamp((positions + 1) // batch.block_size, max=batch.block_tables.shape[1] - 1)
        return batch.block_tables[rows].gather(1, columns) * batch.block_size + positions % batch.block_size

    patch.setattr(sdpa, "_slots", slots)


def padding_from_unwritten_rows(patch: pytest.MonkeyPatch) -> None:
    """Padded places read the row behind the last token. The mask hides it, unless what lies there is not a number."""
    decodes = sdpa._decodes

    def careless(*args: Any) -> Any:
        made = decodes(*args)
        if made.bias is None:
            return made
        slots = made.slots.view(-1, made.length).clone()
        padded = made.bias[:, 0, 0] == float("-inf")
        inside = (slots + 1) % BLOCK_SIZE != 0
        slots[padded & inside] += 1
        return made._replace(slots=slots.flatten())

    patch.setattr(sdpa, "_decodes", careless)


def changed_batch(patch: pytest.MonkeyPatch, change: Callable[[Batch], Batch]) -> None:
    batch = ModelRunner._batch
    patch.setattr(ModelRunner, "_batch", lambda self, *args: change(batch(self, *args)))


def stale_position(patch: pytest.MonkeyPatch) -> None:
    """Every chunk counts its positions from 0."""

    def change(batch: Batch) -> Batch:
        start = batch.attention.query_start
        positions = torch.cat([torch.arange(end - begin) for begin, end in pairwise(start)])
        return replace(batch, positions=positions)

    changed_batch(patch, change)


def position_one_behind(patch: pytest.MonkeyPatch) -> None:
    """Only decodes, and only by one: the subtlest of these. All others keep their place."""

    def change(batch: Batch) -> Batch:
        start = batch.attention.query_start
        single = [begin for begin, end in pairwise(start) if end - begin == 1]
        positions = batch.positions.clone()
        positions[single] = (positions[single] - 1).clamp(min=0)
        return replace(batch, positions=positions)

    changed_batch(patch, change)


def slots_of_a_neighbour(patch: pytest.MonkeyPatch) -> None:
    changed_batch(patch, lambda batch: replace(batch, slots=batch.slots.roll(1)))


def wrong_row_sampled(patch: pytest.MonkeyPatch) -> None:
    changed_batch(patch, lambda batch: replace(batch, sampled_rows=(batch.sampled_rows - 1).clamp(min=0)))


def shared_generator(patch: pytest.MonkeyPatch) -> None:
    """Random numbers come in turn, so a request's depend on who else is there."""
    turns = count()
    uniform = sampling.uniform
    patch.setattr(sampling, "uniform", lambda seed, position: uniform(0, next(turns)))


def generator_restarts_on_preemption(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def restarting(self: Scheduler, request: Request, plan: StepPlan) -> None:
        preempt(self, request, plan)
        request.seed += 1

    patch.setattr(Scheduler, "_preempt", restarting)


def lost_resume(patch: pytest.MonkeyPatch) -> None:
    """A preempted request believes that its first block is still filled; it gets other blocks with other contents."""
    preempt = Scheduler._preempt

    def believing(self: Scheduler, request: Request, plan: StepPlan) -> None:
        preempt(self, request, plan)
        request.num_computed_tokens = min(BLOCK_SIZE, request.num_tokens - 1)

    patch.setattr(Scheduler, "_preempt", believing)


def key_heads_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """Query heads share key heads in the wrong order (0, 1, 0, 1 in place of 0, 0, 1, 1) in decodes."""
    decodes = sdpa._attend_decodes

    def interleaved(q: torch.Tensor, cache: torch.Tensor, group: Any, scale: float) -> torch.Tensor:
        heads = q.shape[1] // 2
        order = torch.arange(q.shape[1]).view(heads, 2).t().flatten()
        return decodes(q[:, order], cache, group, scale)[:, order.argsort()]

    patch.setattr(sdpa, "_attend_decodes", interleaved)


def wrong_scale(patch: pytest.MonkeyPatch) -> None:
    attention = F.scaled_dot_product_attention
    patch.setattr(
        F, "scaled_dot_product_attention", lambda *args, scale, **kw: attention(*args, scale=1.1 * scale, **kw)
    )


BUGS: list[Patch] = [
    no_causal_mask,
    causal_from_the_wrong_corner,
    window_one_too_wide,
    page_off_by_one,
    padding_from_unwritten_rows,
    stale_position,
    position_one_behind,
    slots_of_a_neighbour,
    wrong_row_sampled,
    shared_generator,
    generator_restarts_on_preemption,
    lost_resume,
    key_heads_not_repeated,
    wrong_scale,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_seeded_bug_is_caught(
    folder: Path, jobs: list[Job], alone: Served, bug: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        bug(patch)
        with pytest.raises(AssertionError, match=r"output token \d+ is \d+ instead of"):
            check(folder, jobs, alone)
