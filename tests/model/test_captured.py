"""The captured step: buckets, static addresses and replay through a fake recorder; the tape against eager steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.model.bare_runner import BLOCK_SIZE, open_runner, request
from tests.model.fake_cuda import model_config
from tests.model.fake_recorder import FakeRecorder
from workbench.errors import UsageError
from workbench.model.captured import CapturedSteps
from workbench.model.runner import ModelRunner
from workbench.model.step_recorders import TapeRecorder, captured_steps
from workbench.plan import Scheduled, StepPlan

CPU = torch.device("cpu")


def opened(backend: str = "cpu") -> ModelRunner:
    runner = open_runner(model_config(), backend, CPU, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for layer in runner.decoder.layers:  # all weights alike would hide a mixed up row
        for linear in (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down):
            linear.parts[0].data.normal_(0, 0.05, generator=generator)
    runner.decoder.embedding.data.normal_(0, 0.5, generator=generator)
    runner.cache.storage.normal_(0, 1, generator=generator)
    return runner


def decodes(*lengths: int, seed: int = 0) -> StepPlan:
    """Requests of so many tokens; each owns its blocks."""
    items, first = [], 0
    for length in lengths:
        one = request(length, 0, first_block=first)
        one.token_ids[:] = [(7 * seed + 3 * token + length) % 1000 for token in one.token_ids]
        items.append(Scheduled(one, length - 1, 1, "decode", True))
        first += len(one.block_table)
    return StepPlan(items)


def eager(runner: ModelRunner, plan: StepPlan) -> torch.Tensor:
    logits = runner.forward(plan, runner.prepare(plan))[1]
    assert logits is not None
    return logits.clone()


def assert_same(
    steps: CapturedSteps, runner: ModelRunner, plan: StepPlan, way: Callable[[ModelRunner, StepPlan], torch.Tensor]
) -> None:
    """A recorded step gives the logits of an eager ``way`` and writes the same keys and values."""
    before = runner.cache.storage.clone()
    expected = way(runner, plan)
    written = runner.cache.storage.clone()
    runner.cache.storage.copy_(before)
    torch.testing.assert_close(steps.run(plan), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(runner.cache.storage, written, atol=1e-6, rtol=1e-6)


def test_any_recorder_gives_what_an_eager_step_gives() -> None:
    """Batches of all sizes through three buckets, filled up where they lie between two."""
    runner = opened()
    steps = CapturedSteps(runner.decoder, runner.cache, FakeRecorder(), [1, 2, 5], 64)
    for lengths in ((5,), (9, 1), (3, 17, 8), (4, 4, 30, 1), (2, 3, 5, 7, 11), (6,)):
        plan = decodes(*lengths, seed=len(lengths))
        assert_same(steps, runner, plan, eager)
        assert len(steps.run(plan)) == len(lengths)
    assert isinstance(steps.recorder, FakeRecorder)
    assert steps.recorder.recordings == 3 and steps.recorder.replays == 12 and list(steps.recorded) == [1, 2, 5]


def test_the_tape_equals_eager_steps_to_the_bit() -> None:
    runner = opened()
    steps = CapturedSteps(runner.decoder, runner.cache, TapeRecorder(6), range(1, 7), 64)
    for turn in range(3):
        for lengths in ((5,), (9, 1), (3, 17, 8), (2, 3, 5, 7, 11, 13)):
            plan = decodes(*(length + turn for length in lengths), seed=turn)
            expected = eager(runner, plan)
            assert torch.equal(steps.run(plan), expected)
    assert list(steps.recorded) == [1, 2, 3, 6], "a size is recorded when it is first needed"


def test_addresses_stay_where_they_are() -> None:
    runner = opened()
    steps = CapturedSteps(runner.decoder, runner.cache, TapeRecorder(2), [1, 2], 64)
    first = steps.run(decodes(5, 6))
    kept = first.clone()
    inputs = steps.inputs
    fixed = inputs.tokens, inputs.slots, inputs.tables, inputs.lengths
    addresses = [tensor.data_ptr() for tensor in (*fixed, first)]
    second = steps.run(decodes(15, 16, seed=1))
    now = [tensor.data_ptr() for tensor in (*fixed, second)]
    assert addresses == now and not torch.equal(kept, second), "the new result lies where the old one lay"


def test_a_row_of_padding_writes_nothing_new() -> None:
    """A batch of one in a bucket of four: the cache is written in one place only."""
    runner = opened()
    steps = CapturedSteps(runner.decoder, runner.cache, FakeRecorder(), [4], 64)
    before = runner.cache.storage.clone()
    plan = decodes(6)
    steps.run(plan)
    changed = (runner.cache.storage != before).flatten(3).any(3)
    slot = plan.scheduled[0].request.block_table[5 // BLOCK_SIZE], 5 % BLOCK_SIZE
    assert changed.any(0).nonzero().tolist() == [list(slot)]


def test_which_plans_it_serves() -> None:
    runner = opened()
    steps = CapturedSteps(runner.decoder, runner.cache, FakeRecorder(), [2], 64)
    assert steps.serves(decodes(3, 4)) and not steps.serves(decodes(3, 4, 5))
    chunk = Scheduled(request(9, 0), 0, 9, "prefill", True)
    assert not steps.serves(StepPlan([*decodes(3).scheduled, chunk]))


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, 1], [0, 1]])
def test_buckets_that_make_no_sense(buckets: list[int]) -> None:
    runner = opened()
    with pytest.raises(UsageError, match="rising"):
        CapturedSteps(runner.decoder, runner.cache, FakeRecorder(), buckets, 64)


def test_the_runner_replays_decodes_and_nothing_else() -> None:
    runner = opened()
    recorder = FakeRecorder()
    runner.captured = CapturedSteps(runner.decoder, runner.cache, recorder, [1, 2, 3], 64)
    other = opened()
    for plan in (decodes(9, 4), StepPlan([Scheduled(request(9, 0), 0, 9, "prefill", True)]), decodes(3, 3, 3)):
        # A copy within the pool comes before the step, replayed or not.
        with_copy = replace(plan, copies=[(60, 61)])
        assert runner.execute(with_copy).token_ids == other.execute(with_copy).token_ids
        assert torch.equal(runner.cache.storage[:, 61], runner.cache.storage[:, 60])
    assert recorder.replays == 2


def test_nothing_is_captured_where_nothing_can_be() -> None:
    runner = opened()
    assert captured_steps(runner.decoder, runner.cache, 4, 64) is not None
    assert captured_steps(opened("sdpa").decoder, runner.cache, 4, 64) is None
