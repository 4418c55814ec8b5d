"""Right answers for the exercises of notebook 02, found in other ways, and the cases they are checked with."""

from __future__ import annotations

import math
from random import Random

from workbench.lab.exercise_cases import Case, fixed

# departs


def seen_from_the_pier(queue_len: int, oldest_wait_s: float, max_num_seqs: int, max_wait_s: float) -> bool:
    """It stays as long as there is a free seat and the oldest has patience left."""
    free_seats = range(queue_len, max_num_seqs)
    return not (free_seats and oldest_wait_s < max_wait_s)


def departs_cases() -> list[Case]:
    draw = Random("departs")
    cases = []

    def add(family: str, name: str, *arguments: float, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), seen_from_the_pier, help=help_))

    for number in range(12):
        seats, longest = draw.randint(3, 64), draw.uniform(0.05, 30.0)
        add("random", f"{number}", draw.randint(1, seats + 2), longest * draw.uniform(0.0, 1.3), seats, longest)
    for seats in (3, 10, 64):
        add("full", f"{seats} seats", seats, 0.0, seats, 60.0, help_="a full batch leaves at once")
        add("full", f"{seats} seats, five more wait", seats + 5, 0.2, seats, 60.0, help_="the others take the next one")
        add("not full", f"one of {seats} seats is free", seats - 1, 0.2, seats, 60.0, help_="there is time, and a seat")
    for wait in (0.1, 2.0, 300.0):
        add("the wait is over", f"after {wait} s exactly", 2, wait, 8, wait, help_="the limit itself is long enough")
        add("the wait is over", f"{wait} s and more", 2, 1.5 * wait, 8, wait, help_="it does not wait to be full")
        add("not yet", f"just before {wait} s", 2, math.nextafter(wait, 0.0), 8, wait, help_="the wait is not over")
    add("not yet", "a thousandth of the wait", 2, 0.3, 8, 300.0, help_="both times are in seconds")
    add("single", "one seat", 1, 0.0, 1, 60.0, help_="one request fills it")
    add("single", "no wait at all", 1, 0.0, 8, 0.0, help_="a longest wait of 0 s is over at once")
    add("static", "a day", 7, 86_400.0, 8, math.inf, help_="an infinite wait is never over")
    add("static", "full", 8, 86_400.0, 8, math.inf)
    return cases


# largest-batch


def counted_batch(
    weight_bytes: float, kv_bytes: float, flops: float, bandwidth: float, peak: float, limit_s: float, room: float
) -> int:
    """One request more, as long as all limits hold."""

    def holds(batch: int) -> bool:
        reading, arithmetic = (weight_bytes + batch * kv_bytes) / bandwidth, batch * flops / peak
        return max(reading, arithmetic) <= limit_s and batch * kv_bytes <= room

    batch = 0
    while holds(batch + 1):
        batch += 1
    return batch


def largest_batch_cases() -> list[Case]:
    draw = Random("largest-batch")
    cases = []

    def add(family: str, name: str, *arguments: float, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), counted_batch, help=help_))

    def machine() -> tuple[float, float, float, float, float]:
        """Weights, KV and FLOPs of a request, bandwidth, peak: of a 1B to 20B model in 16 bits on a large GPU."""
        parameters = draw.randint(10**9, 2 * 10**10)
        bandwidth = draw.uniform(1e12, 5e12)
        return (
            2 * parameters,
            draw.randint(10**7, 5 * 10**8),
            2 * parameters,
            bandwidth,
            bandwidth * draw.uniform(100, 400),
        )

    for number in range(6):
        weights, kv, flops, bandwidth, peak = machine()
        limit = weights / bandwidth * draw.uniform(1.2, 3.0)
        add("random", f"{number}", weights, kv, flops, bandwidth, peak, limit, kv * draw.uniform(2, 200))
    for number in range(3):
        weights, kv, flops, bandwidth, peak = machine()
        reading = weights / bandwidth
        many, few = draw.uniform(300, 400), draw.uniform(5, 40)
        add("reading decides", f"{number}", weights, kv, flops, bandwidth, 1e3 * peak, reading + few * kv / bandwidth,
            many * kv, help_="the time that the weights leave is shared by keys and values")  # fmt: skip
        add("arithmetic decides", f"{number}", weights, kv, flops, bandwidth, few * flops / (2 * reading), 2 * reading,
            weights, help_="at this peak arithmetic takes longer than reading")  # fmt: skip
        add("memory decides", f"{number}", weights, kv, flops, bandwidth, peak, 9 * reading, few * kv,
            help_="there is time for more requests than there is room")  # fmt: skip
        add("nobody", f"{number}", weights, kv, flops, bandwidth, peak, draw.uniform(0.1, 0.8) * reading, many * kv,
            help_="reading the weights alone takes longer than the limit")  # fmt: skip
    add("single", "room for one", 1e9, 1e8, 1e9, 1e11, 1e13, 1.0, 1.9e8, help_="half a request is none")
    add("single", "no room for one", 1e9, 1e8, 1e9, 1e11, 1e13, 1.0, 0.9e8, help_="not even one fits")
    return cases
