"""Notebook 02: when a waiting batch leaves, and the largest batch that keeps a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb02_cases as cases

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def departs(queue_len: int, oldest_wait_s: float, max_num_seqs: int, max_wait_s: float) -> bool:
    """Whether a waiting batch leaves now.

    queue_len: requests that wait, at least 1. oldest_wait_s: seconds that the first of them has waited. max_num_seqs:
    seats. max_wait_s: the longest wait in seconds; under static batching it is infinite.
    """
    # your turn: True or False
    return queue_len >= max_num_seqs or oldest_wait_s >= max_wait_s
    # end


def largest_batch(
    weight_bytes: float, kv_bytes: float, flops: float, bandwidth: float, peak: float, limit_s: float, room: float
) -> int:
    """The most requests that may decode together; 0 if not even one may.

    weight_bytes: read once a step. kv_bytes: what each request holds in memory, and reads in a step. flops: of each
    request in a step. bandwidth: bytes a second. peak: FLOPs a second. limit_s: longest step in seconds. room: bytes
    that all keys and values together may take.
    """
    # your turn: three limits, and the tightest one decides
    by_reading = (limit_s * bandwidth - weight_bytes) / kv_bytes
    by_arithmetic = limit_s * peak / flops
    by_memory = room / kv_bytes
    return max(0, int(min(by_reading, by_arithmetic, by_memory)))
    # end


def _as_it_is(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `policies.departs`: static and dynamic engines made meanwhile ask it whenever somebody waits."""
    return function


EXERCISES = (
    Exercise(
        notebook="02",
        id="departs",
        title="Dynamic batching's rule of departure",
        difficulty=1,
        minutes=5,
        statement="The engine asks this function whenever nobody is under way and somebody waits for a batch to leave. "
        "A full batch leaves at once, also if more wait than there are seats. A batch whose oldest request has waited "
        "for the longest wait leaves too, however few they are. Both limits are reached when they are met exactly.",
        function=departs,
        reference=cases.seen_from_the_pier,
        examples=(
            Example((10, 3.0, 10, 300.0), True, "ten for ten seats: full"),
            Example((8, 300.0, 10, 300.0), True, "eight, but the oldest has waited for 300 s"),
            Example((9, 299.0, 10, 300.0), False, "a seat is free and one second is left"),
        ),
        cases=cases.departs_cases,
        hints=(
            "For which two different reasons does the ferry leave, and does it need both?",
            "Compare the queue with the seats, and the wait with the longest wait; each comparison also holds at the "
            "limit itself.",
            "One line: two comparisons with `>=`, joined by `or`.",
        ),
        mutants=(
            Mutant("both reasons at once", " or ", " and "),
            Mutant("a full batch waits for one more", "queue_len >=", "queue_len >"),
            Mutant("only an exact crowd", "queue_len >=", "queue_len =="),
            Mutant("later than the longest wait", "oldest_wait_s >=", "oldest_wait_s >"),
            Mutant("no longest wait", " or oldest_wait_s >= max_wait_s", ""),
            Mutant("only the clock", "queue_len >= max_num_seqs or ", ""),
            Mutant("milliseconds for seconds", "oldest_wait_s >= max", "1e3 * oldest_wait_s >= max"),
            Mutant("one seat left free", ">= max_num_seqs", ">= max_num_seqs - 1"),
        ),
        swap=Swap("workbench.engine.policies", "", "departs", _as_it_is),
    ),
    Exercise(
        notebook="02",
        id="largest-batch",
        title="The largest batch that keeps a promise",
        difficulty=2,
        minutes=15,
        statement="A promise to users bounds a step: it may take `limit_s` seconds. Reading takes bytes ÷ bandwidth: "
        "all weights once, and each request's keys and values. Arithmetic takes FLOPs ÷ peak. Both go on at the same "
        "time, so the longer one decides. Besides, the keys and values of all requests must fit into `room`. Find the "
        "largest whole number of requests within all limits.",
        function=largest_batch,
        reference=cases.counted_batch,
        examples=(
            Example((100, 1, 2, 50, 20, 4, 80), 40, "reading 4 s × 50 = 200 bytes: 100 are weights; arithmetic: 40"),
            Example((100, 4, 2, 50, 20, 4, 80), 20, "80 bytes hold the keys and values of 20; reading allows 25"),
            Example((100, 4, 2, 50, 20, 3, 80), 12, "reading: (150 − 100) ÷ 4 = 12.5, and nobody is half a request"),
            Example((100, 4, 2, 50, 20, 1, 80), 0, "the weights alone take 2 s"),
        ),
        cases=cases.largest_batch_cases,
        hints=(
            "Which three things run out as the batch grows, and how many requests does each of them allow alone?",
            "(weight_bytes + batch × kv_bytes) ÷ bandwidth ≤ limit_s; batch × flops ÷ peak ≤ limit_s; batch × kv_bytes "
            "≤ room. Solve each for the batch.",
            "The smallest of the three quotients, cut to a whole number by `int`, and never below 0: a limit shorter "
            "than the weights' reading gives a negative quotient.",
        ),
        mutants=(
            Mutant("memory without end", "by_arithmetic, by_memory)", "by_arithmetic)"),
            Mutant("arithmetic for nothing", "by_reading, by_arithmetic, by_memory", "by_reading, by_memory"),
            Mutant("reading for nothing", "min(by_reading, ", "min("),
            Mutant("weights already there", " - weight_bytes", ""),
            Mutant("the loosest limit", "int(min(", "int(max("),
            Mutant("rounded to the nearest", "int(min(", "round(min("),
            Mutant("one more than fits", "max(0, int(", "max(0, 1 + int("),
            Mutant("less than nobody", "max(0, int(", "min(10**9, int("),
            Mutant("always one", "max(0,", "max(1,"),
            Mutant(
                "one after the other", "limit_s * peak / flops", "(limit_s - weight_bytes / bandwidth) * peak / flops"
            ),
        ),
    ),
)
