"""Notebook 07: one block of the online softmax, and the blocks that a tile visits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb07_cases as cases

# The solutions. Their text, without what stands in the gaps, is the skeletons in the notebook.


def online_step(highest: float, scores: list[float]) -> tuple[float, list[float], float]:
    """One row meets one block of keys: the new highest score, the block's weights, and the factor for what was before.

    highest: of the scores so far, -inf before the first. scores: the block's, -inf where the row does not see the key;
    a block may be hidden whole. A weight is 2 ** (score - new highest). The row's sum and result so far, which were
    counted from `highest`, become right when multiplied by the factor. A hidden key weighs 0, and nothing is ever NaN.
    """
    # your turn: the new highest, weights and factor; and if nothing has been seen yet?
    new = max(highest, max(scores))
    shift = 0.0 if new == float("-inf") else new
    weights = [2.0 ** (score - shift) for score in scores]
    return new, weights, 2.0 ** (highest - shift)
    # end


def key_blocks(first: int, last: int, block: int, window: int | None) -> tuple[range, range]:
    """Numbers of the blocks of keys that a tile of queries visits, and of those among them that need no mask.

    The tile's queries stand at positions first to last. A query at p sees keys up to p, its own; with a window only the
    last `window` of them. Block b holds keys b * block to (b + 1) * block - 1. A block is visited if any query of the
    tile sees any key of it; it needs no mask if every query sees every key of it. Positions below 0 see nothing.
    """
    # your turn: the first key that any query sees, and the first that every query sees
    begin, all_begin = (0, 0) if window is None else (max(0, p - window + 1) for p in (first, last))
    visited = range(begin // block, last // block + 1)
    whole = range(-(-all_begin // block), (first + 1) // block)
    return visited, whole
    # end


def _as_step(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `attention_walk.online_step`, interpreted: every row of a tile asks the function. A compiled kernel
    keeps its own: it cannot call Python."""
    import numpy as np

    from kernels.triton.interpreter import interpreting
    from kernels.triton.interpreter.values import as_array, as_tensor

    if not interpreting():
        return original

    def step(m_i: Any, s: Any, to_log2: Any, masked: Any) -> Any:
        highest, scores = as_array(m_i), as_array(s) * as_array(to_log2)
        rows = [function(float(one), row.tolist()) for one, row in zip(highest, scores, strict=True)]
        new, weights, factors = (as_tensor(np.array(part)) for part in zip(*rows, strict=True))
        return new, weights, factors

    return step


def _as_bounds(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `attention_walk.bounds`, interpreted: the function chooses the blocks of every causal tile."""
    from kernels.triton.interpreter import interpreting
    from kernels.triton.interpreter.values import as_array, as_scalar

    if not interpreting():
        return original

    def bounds(first_row: Any, q_len: Any, k_len: Any, window: Any, *constants: Any) -> Any:
        own = original(first_row, q_len, k_len, window, *constants)
        group, block_m, block_n, causal, has_window = (getattr(one, "value", one) for one in constants)
        if not causal:
            return own
        row, queries, keys, width = (int(as_array(one).item()) for one in (first_row, q_len, k_len, window))
        positions = (row // group, min((row + block_m - 1) // group, queries - 1))
        first, last = (keys - queries + position for position in positions)
        visited, whole = function(first, last, block_n, width if has_window else None)
        # Not beyond what there is: the kernel reads what it is told to visit.
        lowest, highest = (int(as_array(one).item()) for one in own[:2])
        begin = max(0, visited.start) * block_n
        end = highest if visited.stop == -(-highest // block_n) else min(max(0, visited.stop) * block_n, keys)
        middle = (whole.start * block_n, whole.stop * block_n) if whole else (end, end)
        if not has_window and middle[0] > begin:  # the kernel has no first loop with masks then
            middle = (begin, begin)
        return tuple(as_scalar(number) for number in (max(lowest, begin), end, begin, *middle))

    return bounds


EXERCISES = (
    Exercise(
        notebook="07",
        id="online-step",
        title="One block of the online softmax",
        difficulty=2,
        minutes=20,
        statement="A row of attention walks over blocks of keys and keeps three things: the highest score so far, the "
        "sum of its weights and the weighted sum of values, both counted from that highest score. Write what happens "
        "when the next block comes. The rest is the kernel's: `sum = sum * factor + sum(weights)`, and the same for "
        "the result. Any cut into blocks must end in the softmax (with powers of 2) over all scores at once.",
        function=online_step,
        reference=cases.step_by_definition,
        examples=(
            Example((3.0, [5.0, 4.0]), (5.0, [1.0, 0.5], 0.25), "what was counted from 3 shrinks by 2 ** -2"),
            Example((4.0, [2.0, 4.0]), (4.0, [0.25, 1.0], 1.0), "no higher score, so all stays as it is"),
        ),
        cases=cases.step_cases,
        hints=(
            "A weight from an earlier block is 2 ** (s - old highest). What must it be multiplied by to be what it "
            "would have been, had the new highest been known?",
            "2 ** (s - old) * 2 ** (old - new) = 2 ** (s - new). With a higher score the factor is below 1, else 1. "
            "As long as nothing is seen, old and new are both -inf and their difference is NaN: subtract 0.",
            "The new highest is the larger of `highest` and the block's largest. Subtract it, or 0.0 if it is -inf, "
            "from the scores and from `highest`, and raise 2 to each: those are the weights and the factor.",
        ),
        mutants=(
            Mutant("no rescaling", "2.0 ** (highest - shift)", "1.0"),
            Mutant("the block's own highest", "max(highest, max(scores))", "max(scores)"),
            Mutant("the old highest", "new = max(highest, max(scores))", "new = max(highest, scores[0])"),
            Mutant("−inf − −inf", '0.0 if new == float("-inf") else new', "new"),
            Mutant("upside down", "2.0 ** (highest - shift)", "2.0 ** min(shift - highest, 99)"),
            Mutant("nothing subtracted", "2.0 ** (score - shift)", "2.0**score"),
        ),
        swap=Swap("kernels.triton.attention_walk", "", "online_step", _as_step),
    ),
    Exercise(
        notebook="07",
        id="key-blocks",
        title="Which blocks a tile visits",
        difficulty=2,
        minutes=20,
        statement="A tile of queries must not compute scores that causality or the window hides whole: such blocks are "
        "skipped. Blocks that all of its queries see whole go through a loop without masks. Only edges are masked. "
        "Return both ranges of block numbers.",
        function=key_blocks,
        reference=cases.blocks_by_looking,
        examples=(
            Example((4, 7, 4, None), (range(0, 2), range(0, 1)), "the second block is the diagonal"),
            Example((12, 15, 4, 6), (range(1, 4), range(3, 3)), "keys 7 to 15 are seen, none of these blocks by all"),
            Example((12, 15, 4, 10), (range(0, 4), range(2, 3)), "key 3 is seen by query 12 alone"),
        ),
        cases=cases.block_cases,
        hints=(
            "Which query of the tile sees furthest back, which furthest ahead, and which of them sees the least?",
            "Some query sees the keys from the first query's first to the last query's own. Every query sees those "
            "from the last query's first to the first query's own. Blocks touched by the former are visited; "
            "blocks that lie inside the latter are whole.",
            "With a window, query p's first key is max(0, p - window + 1), else 0. Visited: from the block of the "
            "first query's first key to the block of `last`. Whole: from the last query's first key, "
            "rounded up to a block, to the last block that ends at or before `first`.",
        ),
        mutants=(
            Mutant("masked, not skipped", "range(begin // block,", "range(0,"),
            Mutant("the diagonal forgotten", "last // block + 1", "last // block"),
            Mutant("a block too many", "last // block + 1", "last // block + 2"),
            Mutant("the window one short", "p - window + 1", "p - window + 2"),
            Mutant("the window one wide", "p - window + 1", "p - window"),
            Mutant("the same first key for all", "for p in (first, last)", "for p in (first, first)"),
            Mutant("whole too early", "-(-all_begin // block)", "all_begin // block"),
            Mutant("the diagonal unmasked", "(first + 1) // block", "(last + 1) // block"),
            Mutant("never whole", "(first + 1) // block", "first // block"),
            Mutant("before the first key", "max(0, p - window + 1)", "p - window + 1"),
        ),
        swap=Swap("kernels.triton.attention_walk", "", "bounds", _as_bounds),
    ),
)
