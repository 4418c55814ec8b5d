"""Right answers for the exercise of notebook 04, found by the simulator, and the cases it is checked with."""

from __future__ import annotations

from functools import cache
from math import inf
from random import Random
from typing import Any

from workbench.config import EngineConfig
from workbench.lab.exercise_cases import Case, fixed
from workbench.sampling_params import SamplingParams
from workbench.simulate import FixedCost, simulated_engine


@cache
def simulated_budget(prompt: int, decodes: int, step_ms: float, token_ms: float, itl_ms: float, ttft_ms: float) -> int:
    """By trying every budget, from the largest that could be used on, on the real scheduler."""
    for budget in range(decodes + prompt, decodes, -1):
        longest, first_token = served(prompt, decodes, FixedCost(step_ms, token_ms), budget)
        if longest <= itl_ms and first_token <= ttft_ms:
            return budget
    return 0


def served(prompt: int, decodes: int, cost: FixedCost, budget: int) -> tuple[float, float]:
    """The longest step while a prompt is computed beside running answers, and the time until it has its first token.

    Both in the unit of ``cost``.
    """
    config = EngineConfig(
        max_num_batched_tokens=budget, max_num_seqs=decodes + 1, max_model_len=2 * prompt + 8, num_kv_blocks=65_536
    )
    engine = simulated_engine(config, cost)
    for number in range(decodes):  # each runs longer than the prompt can take
        engine.add_request([1], SamplingParams(max_tokens=prompt + 4, ignore_eos=True), f"running {number}")
    if decodes:
        engine.step()
    engine.add_request([1] * prompt, SamplingParams(max_tokens=1, ignore_eos=True), "prompt")
    arrival, longest = engine.clock.now(), 0.0
    for _ in range(prompt):
        trace = engine.step()
        longest = max(longest, trace.duration)
        if any(new["request_id"] == "prompt" for new in trace.new_tokens):
            return longest, trace.time + trace.duration - arrival
    raise RuntimeError(f"a prompt of {prompt} tokens needs more than {prompt} steps: somebody else took its tokens")


def budget_cases() -> list[Case]:
    """Times are whole sixteenths of a millisecond, so that floats add up exactly."""
    draw = Random("token-budget")
    cases = []

    def add(family: str, name: str, *arguments: Any, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), simulated_budget, help=help_))

    for number in range(7):
        prompt, decodes = draw.randint(16, 40), draw.randint(1, 6)
        step, token = draw.randint(8, 160) / 16, draw.randint(1, 8) / 16
        itl = step + (decodes + draw.randint(1, prompt)) * token + draw.randint(0, 3) / 16
        add("random", f"{number}, any TTFT", prompt, decodes, step, token, itl, inf)
        usual = prompt * token + draw.randint(1, 6) * (step + decodes * token)
        add("random", f"{number}, both", prompt, decodes, step, token, itl, usual)
    add("edge", "the limit of TTFT met exactly", 40, 2, 5.0, 0.5, 11.0, 54.0, help_="both limits may be met exactly")
    add("edge", "a moment too late", 40, 2, 5.0, 0.5, 11.0, 53.9375)
    add("edge", "the last piece is one token", 41, 2, 5.0, 0.5, 11.0, inf, help_="a piece is a step, however short")
    add("edge", "the last piece is too late", 41, 2, 5.0, 0.5, 11.0, 60.0)
    add("edge", "one token a step", 12, 3, 2.0, 0.25, 3.0, inf)
    add("ragged", "ITL allows half a token more", 30, 3, 4.0, 0.5, 9.25, inf, help_="a token is computed or it is not")
    add("ragged", "ITL allows most of a token more", 30, 3, 4.0, 1.0, 12.9375, inf)
    add("single", "nobody is answering", 32, 0, 4.0, 0.25, 8.0, 24.0, help_="then the whole budget is the prompt's")
    add("single", "a prompt of one token", 1, 5, 4.0, 0.25, 8.0, 6.0)
    add("none", "the answers take all", 30, 8, 4.0, 0.5, 8.0, inf, help_="nothing is left for the prompt")
    add(
        "none", "a step alone is too long", 30, 2, 4.0, 0.5, 3.0, inf, help_="no budget makes a step shorter than it is"
    )
    return cases
