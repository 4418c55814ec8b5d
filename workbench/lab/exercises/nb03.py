"""Notebook 03: who gets how many tokens of a step, and the seats in which nothing was computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb03_cases as cases

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def share(needs: list[int], budget: int, limit: int, whole: bool) -> list[int]:
    """Tokens of the next step for each request. needs: what each could use, in the order they are served. budget: most
    tokens of all together. limit: most of one request. whole: chunked prefill is off, and limit is then the budget."""
    # your turn: first come, first served; and what changes with whole?
    shares = [0] * len(needs)
    left = budget
    for place, need in enumerate(needs):
        wanted = min(need, limit)
        if whole and left < wanted and need <= budget:
            break
        shares[place] = min(wanted, left)
        left -= shares[place]
    return shares
    # end


def idle_seat_seconds(steps: list[dict], seats: int) -> float:
    """Seconds of idle seats, over all seats, from the start of the first step to the end of the last. steps: as in a
    recorded run, at least one: "time" when it began, "duration", the list "scheduled" of those that computed and the
    list "held" of those that had their answer and kept their seat."""
    # your turn: all the seat-seconds that there were, less those in which a seat computed
    end = steps[-1]["time"] + steps[-1]["duration"]
    worked = sum(len(step["scheduled"]) * step["duration"] for step in steps)
    return seats * (end - steps[0]["time"]) - worked
    # end


def _as_share(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `policies.share`: an engine that is made meanwhile asks the function in every step."""
    return lambda needs, budget, limit, whole=False: function(list(needs), budget, limit, whole)


_STEPS = [
    {"time": 2.0, "duration": 1.0, "scheduled": ["a", "b"], "held": []},
    {"time": 3.0, "duration": 0.5, "scheduled": ["a"], "held": ["b"]},
]
_PAUSE = [
    {"time": 0.0, "duration": 1.0, "scheduled": ["a"], "held": []},
    {"time": 4.0, "duration": 1.0, "scheduled": ["b"], "held": []},
]

EXERCISES = (
    Exercise(
        notebook="03",
        id="share",
        title="Choosing under a token budget",
        difficulty=2,
        minutes=15,
        statement="A step computes at most `budget` tokens. Requests are served in order: nobody gets more than it "
        "needs or more than `limit`, and who stands behind gets what is left, perhaps nothing. A need may be met in "
        "part: that is chunked prefill. With `whole` a need is met in full or not at all; and so that a long prompt "
        "does not wait for ever, nobody behind the first that is not met gets anything. Only a need above the whole "
        "budget, which no step could ever meet, gets what is left all the same.",
        function=share,
        reference=cases.dealt,
        examples=(
            Example(([1, 1, 20, 9], 16, 16, False), [1, 1, 14, 0], "two decodes, then as much of the prompt as fits"),
            Example(([1, 20, 9], 16, 6, False), [1, 6, 6], "nobody more than 6; 3 tokens of the budget are left over"),
            Example(([1, 10, 9, 2], 16, 16, True), [1, 10, 0, 0], "9 is not met, so 2 behind it must not overtake"),
            Example(([1, 30, 4], 16, 16, True), [1, 15, 0], "30 is more than any step has: it is cut all the same"),
        ),
        cases=cases.share_cases,
        hints=(
            "What does one request leave for the next, and when does the next one have to stand still?",
            "The shares add up to at most the budget, none is above its need or the limit, and whoever comes first is "
            "served first. With `whole`, a share is 0 or the whole need, unless the need exceeds the budget.",
            "Walk through the needs and keep what is left of the budget. A share is the least of need, limit and what "
            "is left. With `whole`: stop at the first that what is left cannot meet, if the whole budget could.",
        ),
        mutants=(
            Mutant("the limit forgotten", "min(need, limit)", "need"),
            Mutant("prompts cut though whole", "if whole and", "if False and"),
            Mutant("prompts never cut", "if whole and left", "if left"),
            Mutant("others overtake", "break", "continue"),
            Mutant("too long for any step waits for ever", " and need <= budget", ""),
            Mutant("a fit to the last token refused", "left < wanted", "left <= wanted"),
            Mutant("the budget for each", "left -= shares[place]", "left -= 0"),
            Mutant("a token of the budget lost", "left = budget", "left = budget - 1"),
        ),
        swap=Swap("workbench.engine.policies", "", "share", _as_share),
    ),
    Exercise(
        notebook="03",
        id="idle-seats",
        title="Idle seats from traces",
        difficulty=1,
        minutes=10,
        statement="An engine has `seats` (`max_num_seqs`) places. From the start of the first step to the end of the "
        "last, a seat is idle whenever nothing is computed in it: because nobody sits there, because whoever sits "
        "there has its answer already and is held, or because no step runs at all. Add up the seconds over all seats.",
        function=idle_seat_seconds,
        reference=cases.watched_idle_seconds,
        given={"steps": _STEPS, "pause": _PAUSE},
        examples=(
            Example((_STEPS, 2), 0.5, "b is held for half a second"),
            Example((_STEPS, 3), 2.0, "and a third seat is empty for 1.5 seconds"),
            Example((_PAUSE, 1), 3.0, "between the two steps nothing is computed for 3 seconds"),
        ),
        cases=cases.idle_cases,
        hints=(
            "Is it easier to count the idle seconds, or those in which a seat computes?",
            "seats × (end of the last step − start of the first) = seconds that computed + seconds that were idle. Who "
            "is held does not compute.",
            "The seconds that computed: for each step the number of those scheduled × its duration, all added up. The "
            "last step ends at its time + its duration.",
        ),
        mutants=(
            Mutant("the held count as busy", 'len(step["scheduled"])', '(len(step["scheduled"]) + len(step["held"]))'),
            Mutant("every step alike", ' * step["duration"] for', " for"),
            Mutant("pauses forgotten", '(end - steps[0]["time"])', 'sum(step["duration"] for step in steps)'),
            Mutant("the last step forgotten", ' + steps[-1]["duration"]', ""),
            Mutant("from zero on", ' - steps[0]["time"]', ""),
            Mutant("one seat", "seats * (", "(1) * ("),
        ),
    ),
)
