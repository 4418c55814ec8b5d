"""Right answers for the exercises of notebook 07, found another way, and the cases they are checked with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

Step = Callable[[float, list[float]], tuple[float, list[float], float]]


def step_by_definition(highest: float, scores: list[float]) -> tuple[float, list[float], float]:
    """From the sorted scores, with e and logarithms."""
    seen = [score for score in (highest, *scores) if score > -math.inf]
    if not seen:
        return -math.inf, [0.0] * len(scores), 0.0
    new = sorted(seen)[-1]

    def share(score: float) -> float:
        return 0.0 if score == -math.inf else math.exp((score - new) * math.log(2))

    return new, [share(score) for score in scores], share(highest)


def folded(step: Step, blocks: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> dict[str, float]:
    """A row over all its blocks, as the kernel does it."""
    highest, total, result = -math.inf, 0.0, 0.0
    for scores, column in zip(blocks, values, strict=True):
        highest, weights, factor = step(highest, list(scores))
        total = total * factor + sum(weights)
        result = result * factor + sum(w * v for w, v in zip(weights, column, strict=True))
    return _row(highest + math.log2(total) if total else -math.inf, result / (total or 1.0))


def softmax_at_once(blocks: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> dict[str, float]:
    """The same by the definition, all scores at once."""
    scores = [score for block in blocks for score in block]
    top = max(scores)
    if top == -math.inf:
        return _row(-math.inf, 0.0)
    weights = [math.exp2(score - top) for score in scores]
    column = [value for block in values for value in block]
    total = math.fsum(weights)
    return _row(top + math.log2(total), math.fsum(map(math.prod, zip(weights, column, strict=True))) / total)


def _row(log_sum: float, result: float) -> dict[str, float]:
    return {"log2 of the sum of 2 ** score": log_sum, "weighted mean of the values": result}


def step_cases() -> list[Case]:
    draw = Random("online-step")
    cases: list[Case] = []
    nothing = -math.inf

    def whole(family: str, name: str, blocks: Sequence[Sequence[float]], help_: str = "") -> None:
        values = [[draw.randint(-8, 8) / 4 for _ in block] for block in blocks]
        row, near = fixed(blocks, values), (1e-9, 1e-9)
        cases.append(
            Case(family, name, row, softmax_at_once, *near, help_, folded, inputs=("blocks of scores", "their values"))
        )

    for number in range(6):
        scores = [draw.randint(-40, 40) / 8 for _ in range(12)]
        width = draw.choice((1, 2, 3, 4, 6))
        cut = [scores[i : i + width] for i in range(0, 12, width)]
        whole("random", f"{number}: 12 scores in blocks of {width}", cut, "any cut must end in the softmax of all")
    whole("rising", "each block higher", [[1.0, 2.0], [5.0, 3.0], [9.0, 8.5]], "what was before must shrink")
    whole("falling", "the highest comes first", [[9.0, 8.5], [5.0, 3.0], [1.0, 2.0]], "the highest stays the highest")
    whole("large", "scores of thousands", [[1800.0, 1801.0], [1802.5, 1799.0]], "2 ** 1800 is no float: subtract first")
    whole("ragged", "a short last block", [[0.5, -1.0, 2.0], [1.5]])
    whole("hidden", "the first block is hidden", [[nothing, nothing], [1.0, 2.0]], "-inf - -inf is NaN")
    whole("hidden", "a block between is hidden", [[1.0, 0.0], [nothing, nothing], [2.0, 3.0]])
    whole("hidden", "every block is hidden", [[nothing, nothing], [nothing]])
    whole("hidden", "hidden keys among others", [[nothing, 1.0], [2.0, nothing]], "a hidden key weighs 0")
    for highest, scores in ((1.5, [0.5, 2.5, -1.0]), (-3.0, [-4.0, -5.5]), (nothing, [-70.0, -71.0])):
        cases.append(Case("one step", f"highest {highest}", fixed(highest, scores), step_by_definition))
    cases.append(Case("single", "one key", fixed(0.25, [1.25]), step_by_definition))
    return cases


def blocks_by_looking(first: int, last: int, block: int, window: int | None) -> tuple[range, range]:
    """By asking every query about every key."""
    numbers = range(max(0, last) // block + 1)
    queries = range(first, last + 1)

    def sees(query: int, key: int) -> bool:
        return key <= query and (window is None or query - key < window)

    def keys(number: int) -> range:
        return range(number * block, (number + 1) * block)

    visited = [n for n in numbers if any(sees(q, k) for q in queries for k in keys(n))]
    whole = [n for n in visited if all(sees(q, k) for q in queries for k in keys(n))]
    return _as_range(visited), _as_range(whole)


def _as_range(numbers: list[int]) -> range:
    return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


def _judge(expected: Any, got: Any, *arguments: Any) -> Any:
    """An empty range is empty wherever it begins; lists of the same numbers are no mistake."""
    from workbench.lab.exercise_cases import difference

    try:
        plain = tuple([*map(int, part)] for part in got)
    except (TypeError, ValueError):
        plain = got
    return difference(tuple([*part] for part in expected), plain)


def block_cases() -> list[Case]:
    draw = Random("key-blocks")
    cases: list[Case] = []

    def add(family: str, name: str, *arguments: Any, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), blocks_by_looking, judge=_judge, help=help_))

    for number in range(10):
        first, rows, block = draw.randint(0, 40), draw.randint(1, 12), draw.choice((2, 3, 4, 8))
        add("random", f"{number}, causal", first, first + rows - 1, block, None)
        add("random", f"{number}, window", first, first + rows - 1, block, draw.randint(1, 30))
    add("edge", "the window begins with a block", 15, 19, 4, 12, help_="a query sees itself and window - 1 before it")
    add("edge", "the window begins one key later", 16, 19, 4, 12)
    add("edge", "the window is wider than the text", 2, 9, 4, 100, help_="no key lies before 0")
    add("edge", "the tile ends with a block", 4, 7, 4, 5)
    add("edge", "the tile begins with a block's last key", 7, 9, 4, None, help_="a query sees its own key")
    add("single", "one query", 11, 11, 4, None, help_="a decode step")
    add("single", "one query sees itself alone", 11, 11, 4, 1)
    add("ragged", "a block of one key", 3, 6, 1, 2)
    add("ragged", "tiles and blocks do not line up", 5, 10, 4, 7)
    add("none", "positions below 0", -3, -1, 4, None, help_="more queries than keys: the first see nothing")
    add("none", "the first queries see nothing", -2, 5, 4, 3)
    return cases
