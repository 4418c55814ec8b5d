"""Notebook 04: the token budget that keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb04_cases as cases

STEP_MS, TOKEN_MS, ITL_MS = 10.0, 0.125, 30.0
"""What the engine asks the reader's function with: a step of the notebook's virtual engine, and a promise."""

# The solution. Its text, without what stands in the gap, is the skeleton in the notebook.


def token_budget(prompt: int, decodes: int, step_ms: float, token_ms: float, itl_ms: float, ttft_ms: float) -> int:
    """The largest token budget that keeps both promises; 0 if none does.

    prompt: tokens of a prompt that comes while `decodes` answers run, each of which gets a token in every step. A step
    takes step_ms, and token_ms for each token in it. itl_ms: no step may take longer. ttft_ms: from the arrival to the
    end of the step that completes the prompt. The budget counts all tokens of a step; more than prompt + decodes is
    never used.
    """
    # your turn: the largest step that ITL allows; and does TTFT hold with it?
    budget = min(int((itl_ms - step_ms) / token_ms), decodes + prompt)
    chunk = budget - decodes
    if chunk < 1:
        return 0
    steps = -(-prompt // chunk)
    ttft = steps * (step_ms + decodes * token_ms) + prompt * token_ms
    return budget if ttft <= ttft_ms else 0
    # end


def _as_share(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `policies.share`: before every step with a prompt in it, the function chooses the step's budget."""

    def share(needs: Any, budget: int, limit: int, whole: bool = False) -> Any:
        prompt = max(needs, default=0)
        if prompt > 1:
            chosen = function(prompt, needs.count(1), STEP_MS, TOKEN_MS, ITL_MS, math.inf)
            budget = min(budget, chosen or budget)
        return original(needs, budget, limit, whole)

    return share


EXERCISES = (
    Exercise(
        notebook="04",
        id="token-budget",
        title="A token budget for two promises",
        difficulty=2,
        minutes=20,
        statement="Answers are running, and a long prompt comes. Users were promised two things: no running answer "
        "waits longer than `itl_ms` for its next token, and the prompt is complete after at most `ttft_ms`. Every "
        "step serves the running answers first, one token each, and the prompt gets what is left of the budget. Find "
        "the largest budget that keeps both promises. Both limits may be met exactly.",
        function=token_budget,
        reference=cases.simulated_budget,
        examples=(
            Example((1000, 4, 10, 0.125, 30, 1000), 160, "20 ms are left for tokens; 7 steps, 198.5 ms in all"),
            Example((1000, 4, 10, 0.125, 30, 198), 0, "any smaller budget needs even more steps"),
            Example((100, 4, 10, 0.125, 30, 1000), 104, "the whole prompt fits into one step"),
            Example((100, 4, 10, 0.125, 10.5, 1000), 0, "10.5 ms hold the four answers and nothing else"),
        ),
        cases=cases.budget_cases,
        hints=(
            "Which promise bounds the budget from above, which from below, and which of them do you need to solve for?",
            "A step of `budget` tokens takes step_ms + budget × token_ms. The prompt gets budget − decodes of them, so "
            "it takes prompt ÷ (budget − decodes) steps, rounded up. A smaller budget completes no prompt earlier.",
            "Take the largest budget that itl_ms allows, cut to a whole number and to what can be used. If less than "
            "one token is left for the prompt: 0. Else add up its steps: each costs step_ms and the tokens of the "
            "decodes, and all of them together the tokens of the prompt. Compare with ttft_ms.",
        ),
        mutants=(
            Mutant("the answers forgotten", "chunk = budget - decodes", "chunk = budget"),
            Mutant("more than is used", "min(int(", "max(int("),
            Mutant("no room for the answers", ", decodes + prompt)", ", prompt)"),
            Mutant("a step costs nothing", "(itl_ms - step_ms)", "(itl_ms)"),
            Mutant("rounded to the nearest", "int((", "round(("),
            Mutant("one token too many", "int((", "1 + int(("),
            Mutant("the last piece forgotten", "-(-prompt // chunk)", "prompt // chunk"),
            Mutant("answers for nothing", "(step_ms + decodes * token_ms)", "step_ms"),
            Mutant("one step", "steps * (", "(1) * ("),
            Mutant("the prompt for nothing", " + prompt * token_ms", ""),
            Mutant("earlier than promised", "ttft <= ttft_ms", "ttft < ttft_ms"),
            Mutant("TTFT forgotten", "budget if ttft <= ttft_ms else 0", "budget"),
            Mutant("a chunk of nothing", "chunk < 1", "chunk < 0"),
        ),
        swap=Swap("workbench.engine.policies", "", "share", _as_share),
    ),
)
