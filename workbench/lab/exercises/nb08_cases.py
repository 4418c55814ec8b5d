"""Right answers for the exercises of notebook 08, found another way, and the cases they are checked with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

Merge = Callable[[list[float], float, list[float], float], tuple[list[float], float]]
_EXACT = Context(prec=60)


def slots_by_walking(block_table: list[int], length: int, block_size: int) -> list[int]:
    """From block to block, counting on within each."""
    found: list[int] = []
    for block in block_table:
        slot = block * block_size
        while len(found) < length and slot < (block + 1) * block_size:
            found.append(slot)
            slot += 1
    return found


def slot_cases() -> list[Case]:
    draw = Random("slots")
    cases: list[Case] = []

    def add(family: str, name: str, *arguments: Any, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), slots_by_walking, help=help_))

    for number in range(8):
        size, blocks = draw.choice((2, 3, 4, 16, 17)), draw.randint(2, 6)
        table = draw.sample(range(40), blocks)
        add("random", f"{number}: blocks of {size}", table, draw.randint(1, blocks * size), size)
    add("ragged", "the last block is not full", [9, 4, 11], 9, 4, help_="as many slots as tokens")
    add("ragged", "the last block is just full", [9, 4, 11], 12, 4)
    add("ragged", "one token in a new block", [9, 4, 11], 9, 8, help_="token 8 is the first of the second block")
    add("single", "one token", [7], 1, 16)
    add("single", "block 0", [0, 3], 5, 4, help_="block 0 is a block like any other")
    add("empty", "no token yet", [2, 5], 0, 4, help_="a table may be there before the first token")
    add("order", "blocks in falling order", [8, 6, 1], 7, 3, help_="the table's order is the tokens' order")
    add("order", "neighbours that are no neighbours", [3, 2], 4, 2)
    return cases


def parts_by_cells(stored: int, final: int, held: int) -> tuple[int, int, int]:
    """Slot by slot, each under one name."""
    found = Counter(
        "tokens" if slot < stored else "reserved" if slot < final else "internal" for slot in range(held)
    )  # fmt: skip
    return found["tokens"], found["reserved"], found["internal"]


def part_cases() -> list[Case]:
    draw = Random("slot-parts")
    cases: list[Case] = []

    def add(family: str, name: str, *arguments: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), parts_by_cells, help=help_))

    for number in range(8):
        stored = draw.randint(1, 60)
        final = stored + draw.randint(0, 60)
        add(
            "random",
            f"{number}: reserved",
            stored,
            final,
            final + draw.randint(0, 90),
            help_="held covers all it will need",
        )
        held = -(-stored // 16) * 16
        add("paged", f"{number}: blocks of 16", stored, final, held, help_="the blocks it has, not those it will have")
    add("ends", "the last token is stored", 33, 33, 48, help_="nothing comes any more")
    add("ends", "full to the last slot", 32, 32, 32)
    add("paged", "the block is full, more will come", 16, 40, 16, help_="slots that it does not hold are not counted")
    add("single", "one token of a long reservation", 1, 2, 2048)
    return cases


def merged_by_decimals(out_a: list[float], lse_a: float, out_b: list[float], lse_b: float) -> tuple[list[float], float]:
    """By the definition with sixty digits, where nothing overflows and nothing need be subtracted."""
    states = [(out, Decimal(lse).exp(_EXACT)) for out, lse in ((out_a, lse_a), (out_b, lse_b)) if lse != -math.inf]
    total = sum((weight for _, weight in states), Decimal(0))
    if not states:
        return [0.0 for _ in out_a], -math.inf
    out = [sum((Decimal(part[i]) * weight for part, weight in states), Decimal(0)) for i in range(len(out_a))]
    return [float(_EXACT.divide(number, total)) for number in out], float(total.ln(_EXACT))


def state_of(scores: Sequence[float], values: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """Attention over some keys at once: the weighted mean of their values, and the log-sum-exp of their scores."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    columns = zip(*values, strict=True)
    out = [math.fsum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]
    return out, top + math.log(total)


Vectors = list[list[float]]


def of_parts(
    merge: Merge, scores_a: list[float], values_a: Vectors, scores_b: list[float], values_b: Vectors
) -> tuple[list[float], float]:
    """Each part by itself, then both through the function."""
    return merge(*state_of(scores_a, values_a), *state_of(scores_b, values_b))


def at_once(
    scores_a: list[float], values_a: Vectors, scores_b: list[float], values_b: Vectors
) -> tuple[list[float], float]:
    return state_of([*scores_a, *scores_b], [*values_a, *values_b])


def merge_cases() -> list[Case]:
    draw = Random("merge")
    near, nothing = (1e-9, 1e-9), -math.inf
    cases: list[Case] = []

    def two(family: str, name: str, *arguments: Any, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), merged_by_decimals, *near, help_))

    def vector() -> list[float]:
        return [draw.randint(-40, 40) / 8 for _ in range(3)]

    for number in range(5):
        two("random", f"{number}", vector(), draw.uniform(-3, 3), vector(), draw.uniform(-3, 3))
    for number in range(4):
        sizes = draw.randint(1, 6), draw.randint(1, 6)
        scores = [[draw.uniform(-4, 4) for _ in range(size)] for size in sizes]
        values = [[vector() for _ in range(size)] for size in sizes]
        keys = fixed(scores[0], values[0], scores[1], values[1])
        inputs = ("scores of the first part", "its values", "scores of the second part", "its values")
        help_ = "any cut must end in attention over all keys"
        name = f"{number}: {sizes[0]} keys and {sizes[1]}"
        cases.append(Case("parts", name, keys, at_once, *near, help_, of_parts, inputs))
    nan = [math.nan, math.nan, math.nan]
    two("empty", "the first saw nothing", nan, nothing, vector(), 1.5, help_="0 * NaN is NaN: do not look at it")
    two("empty", "the second saw nothing", vector(), -2.0, nan, nothing)
    two("empty", "both saw nothing", [1.0, 2.0, 0.5], nothing, nan, nothing, help_="zeros, and -inf")
    two("large", "scores of hundreds", vector(), 801.0, vector(), 800.0, help_="e ** 800 is no float")
    two("large", "scores far below 0", vector(), -900.5, vector(), -901.0, help_="both weights would be 0")
    two("single", "one number", [0.75], -0.5, [-2.0], 0.5)
    return cases
