"""Slots of a pool in use and empty, against the engine's own requests as they stand after each step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_llm import open_llm
from workbench import SamplingParams
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab import Watch, pool_use
from workbench.lab.block_fill import block_fill
from workbench.lab.snapshot import PoolSnapshot


class Recount:
    """After each step, from the running requests themselves: tables, blocks, tokens whose keys are stored."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.found = engine, list[tuple[int, int, int, int]]()

    def __call__(self, trace: StepTrace) -> None:
        running = list(self.engine.scheduler.running)
        blocks = sum(len(one.block_table) for one in running)
        stored = sum(one.num_computed_tokens for one in running)
        self.found.append((len(running), blocks, stored, blocks * self.engine.pool.block_size - stored))


@pytest.mark.parametrize(("block_size", "num_kv_blocks"), [(4, 16), (1, 64), (16, 4)])
def test_every_step_is_what_its_requests_hold(folder: Path, block_size: int, num_kv_blocks: int) -> None:
    """A small pool, in which requests wait, are preempted and come back."""
    llm = open_llm(folder, block_size=block_size, num_kv_blocks=num_kv_blocks, enable_prefix_caching=False)
    engine = llm.new_engine(max_model_len=48)
    for number, (prompt, answer) in enumerate(((9, 7), (5, 12), (14, 20), (3, 30), (20, 9))):
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        engine.add_request([number + 1] * prompt, params)
    recount = Recount(engine)
    engine.listeners.append(recount)
    with Watch(engine) as run:
        while engine.has_unfinished():
            engine.step()
    found = pool_use(run.traces, run.snapshots)
    assert [tuple(one) for one in found] == recount.found
    assert all(0 <= one.empty < block_size * max(1, one.requests) for one in found)
    assert any(one.empty for one in found) is (block_size > 1)


def test_a_shared_block_counts_once() -> None:
    snapshot = PoolSnapshot(6, 4, {"a": (5, 2), "b": (5, 0)})
    assert block_fill(snapshot, {"a": 7, "b": 5}) == [1, 0, 3, 0, 0, 4]
    assert block_fill(snapshot, {"a": 2, "b": 0}) == [0, 0, 0, 0, 0, 2]


def test_snapshots_of_another_run_are_refused() -> None:
    with pytest.raises(UsageError, match="1 snapshots for 0 traces"):
        pool_use([], [PoolSnapshot(2, 4, {})])
