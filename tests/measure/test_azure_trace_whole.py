"""A public trace whole, through scheduler and pool: real arrivals and lengths, a fake model, a virtual clock."""

from __future__ import annotations

import time

import pytest

from tests.measure.test_trace_files import real
from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.measure.drive import drive
from workbench.measure.metrics import serving_metrics
from workbench.measure.slo import Slo
from workbench.measure.trace_files import trace_workload
from workbench.plan import StepPlan, StepResult

VOCAB_SIZE = 256
STEP_SECONDS, TOKEN_SECONDS = 5e-3, 20e-6
"""What a step and each of its tokens take: made up, for this trace needs some time to pass."""


class TimedOnes:
    """Samples token 1 wherever one is due."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def execute(self, plan: StepPlan) -> StepResult:
        self.clock.advance(STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens)
        return StepResult([1 if item.samples else None for item in plan.scheduled])


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_azure_code_trace_goes_through_scheduler_and_pool(proof):
    workload = trace_workload(real("azure_code_2023.csv.gz"), seed=0)
    clock = VirtualClock()
    config = EngineConfig(num_kv_blocks=2000, max_model_len=16384, max_num_seqs=64)
    engine = Engine(config, TimedOnes(clock), clock=clock, vocab_size=VOCAB_SIZE)
    started = time.perf_counter()
    told = drive(engine, workload, VOCAB_SIZE)
    seconds = time.perf_counter() - started
    engine.pool.check()
    assert engine.pool.num_available == 2000 and not engine.has_unfinished() and not told.rejected
    found = serving_metrics(told.traces, slo=Slo(ttft=500), max_num_seqs=64)
    assert found["completed"] == 8819
    assert found["total_input_tokens"] == sum(workload.input_lens)
    assert found["total_output_tokens"] == sum(workload.output_lens)
    assert {index: len(answer) for index, answer in told.answers.items()} == dict(enumerate(workload.output_lens))
    # Nobody was sent before he was due, and nobody's wait was forgotten.
    assert all(told.arrivals[index] == ask.arrival for index, ask in enumerate(workload.asks))
    proof.report(
        "the Azure code trace whole on a virtual clock",
        f"{found['completed']} requests, {found['total_input_tokens']:,} prompt tokens, {found['num_steps']:,} steps, "
        f"{found['preemptions']} preemptions in {seconds:.0f} s",
    )
