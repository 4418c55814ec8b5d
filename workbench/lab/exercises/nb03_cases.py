"""Right answers for the exercises of notebook 03, found by counting, and the cases they are checked with."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

Step = dict[str, Any]


# share


def dealt(needs: list[int], budget: int, limit: int, whole: bool) -> list[int]:
    """One token after the other."""
    tokens, given, closed = list(range(budget)), [], False
    for need in needs:
        hand: list[int] = []
        while tokens and not closed and len(hand) < min(need, limit):
            hand.append(tokens.pop())
        if whole and len(hand) < need <= budget:
            tokens, hand, closed = tokens + hand, [], True
        given.append(len(hand))
    return given


def share_cases() -> list[Case]:
    draw = Random("share")
    cases = []

    def add(family: str, name: str, needs: list[int], budget: int, limit: int, whole: bool, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(needs, budget, limit, whole), dealt, help=help_))

    for number in range(8):
        needs = [draw.choice([1, 1, 1, draw.randint(2, 90)]) for _ in range(draw.randint(3, 12))] + [17 + number]
        budget = draw.randint(5, 80)
        add("random", f"{number}, in pieces", needs, budget, draw.randint(2, budget), False)
        add("random", f"{number}, whole", needs, budget, budget, True)
    add("none", "nobody needs anything", [], 16, 16, False, "there may be nobody")
    add("none", "nobody needs anything, whole", [], 16, 16, True, "there may be nobody")
    for whole in (False, True):
        how = "whole" if whole else "in pieces"
        add("single", f"one prompt, {how}", [12], 16, 16, whole)
        add("single", f"one long prompt, {how}", [40], 16, 16, whole, "no step could ever meet it")
        add("edge", f"the last token fits, {how}", [1, 15, 3], 16, 16, whole, "it may be used to the last token")
        add("edge", f"one token short, {how}", [2, 15, 1], 16, 16, whole)
        add("edge", f"a budget of one, {how}", [3, 1], 1, 1, whole)
    add("order", "a short one behind a long one", [5, 14, 1, 2], 16, 16, True, "nobody overtakes who is not met")
    add("order", "a long one in the middle", [5, 90, 1, 2], 16, 16, True, "above the budget: it takes what is left")
    return cases


# idle-seats


def watched_idle_seconds(steps: list[Step], seats: int) -> float:
    """By looking, between any two moments at which a step begins or ends, at who computes."""
    spans = [(step["time"], step["time"] + step["duration"], len(step["scheduled"])) for step in steps]
    moments = sorted({moment for begin, end, _ in spans for moment in (begin, end)})
    idle = 0.0
    for before, after in pairwise(moments):
        busy = sum(count for begin, end, count in spans if begin <= before and after <= end)
        idle += (seats - busy) * (after - before)
    return idle


def _step(time: float, duration: float, busy: int, held: int) -> Step:
    names = [f"r{number}" for number in range(busy + held)]
    return {"time": time, "duration": duration, "scheduled": names[:busy], "held": names[busy:]}


def _steps(draw: Random, seats: int, pauses: bool, count: int) -> list[Step]:
    """Times and durations in whole eighths, so that floats add up the same in any order."""
    time, found = draw.randint(1, 40) / 8, []
    for _ in range(count):
        busy = draw.randint(1, seats)
        found.append(_step(time, draw.randint(1, 12) / 8, busy, draw.randint(0, seats - busy)))
        time = found[-1]["time"] + found[-1]["duration"] + (draw.randint(0, 9) / 8 if pauses else 0)
    return found


def idle_cases() -> list[Case]:
    draw = Random("idle-seats")
    cases = []

    def add(family: str, name: str, steps: list[Step], seats: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(steps, seats), watched_idle_seconds, absolute=1e-9, help=help_))

    for number in range(6):
        seats = draw.randint(2, 9)
        add("random", f"{number}, one step after the other", _steps(draw, seats, False, 5 + number), seats)
        add("random", f"{number}, with pauses", _steps(draw, seats, True, 5 + number), seats, "between steps all idle")
    add("single", "one step", [_step(3.0, 0.25, 3, 1)], 8, "the first step is also the last")
    add("single", "one seat, never idle", [_step(1.5, 0.5, 1, 0)], 1)
    uneven = [_step(0.5, 0.125, 1, 3), _step(0.625, 4.0, 4, 0)]
    add("ragged", "a short step and a long one", uneven, 4, "a seat idles as long as the step lasts")
    wait = [_step(0.0, 0.5, 2, 0), _step(0.5, 0.0, 0, 0), _step(9.0, 0.5, 2, 0)]
    add("empty", "a step that computes nothing and waits", wait, 2, "nobody computes from 0.5 to 9")
    return cases
