"""Notebook 04's exercise against the simulator: no other budget does better, and a function swapped in is asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import EngineConfig
from workbench.engine import policies
from workbench.engine.trace import StepTrace
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb04 import ITL_MS, STEP_MS, TOKEN_MS
from workbench.lab.exercises.nb04_cases import served, simulated_budget
from workbench.sampling_params import SamplingParams
from workbench.simulate import FixedCost, simulated_engine

BUDGET = exercise("04", "token-budget")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


sixteenths = st.integers(1, 80).map(lambda count: count / 16)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 5), sixteenths, sixteenths, st.integers(1, 800), st.integers(1, 1600))
def test_the_answer_is_the_best_of_all_budgets(
    prompt: int, decodes: int, step: float, token: float, itl: int, ttft: int
) -> None:
    arguments = (prompt, decodes, step, token, itl / 16, ttft / 16)
    assert BUDGET.function(*arguments) == simulated_budget(*arguments)


def test_the_simulator_measures_what_it_says() -> None:
    # Four answers beside a prompt of 10 in pieces of 4: 4, 4 and 2 tokens, so steps of 8, 8 and 6.
    assert served(10, 4, FixedCost(10, 0.5), 8) == (14.0, 14.0 + 14.0 + 13.0)
    assert served(10, 0, FixedCost(10, 0.5), 99) == (15.0, 15.0)


def run(prompt: int = 1000, decodes: int = 4, **options: Any) -> list[StepTrace]:
    """Steps from the arrival of a prompt among running answers to its first token."""
    engine = simulated_engine(EngineConfig(**options), FixedCost(STEP_MS / 1e3, TOKEN_MS / 1e3))
    for _ in range(decodes):
        engine.add_request([1], SamplingParams(max_tokens=500, ignore_eos=True))
    engine.step()
    engine.add_request([1] * prompt, SamplingParams(max_tokens=1), "prompt")
    traces = []
    while not traces or not any(end["request_id"] == "prompt" for end in traces[-1].finished):
        traces.append(engine.step())
    return traces


def test_an_engine_asks_the_readers_function_for_the_budget_of_each_step() -> None:
    own, before = policies.share, run()
    assert len(before) == 1, "the engine's own budget holds the prompt"
    with BUDGET.use(BUDGET.function) as used:
        traces = run()
    assert policies.share is own and len(run()) == 1
    assert used.who == "your function" and used.calls == len(traces) > 1
    longest = max(trace.duration for trace in traces)
    assert longest * 1e3 == pytest.approx(ITL_MS)
    best = BUDGET.function(1000, 4, STEP_MS, TOKEN_MS, ITL_MS, math.inf)
    assert [item["num_tokens"] for item in traces[0].scheduled] == [1, 1, 1, 1, best - 4]


def test_where_no_budget_keeps_the_promise_the_engine_keeps_its_own() -> None:
    with BUDGET.use(BUDGET.function):
        [trace] = run(prompt=20, decodes=int((ITL_MS - STEP_MS) / TOKEN_MS), max_num_seqs=200)
    assert trace.duration * 1e3 > ITL_MS
