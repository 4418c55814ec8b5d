"""Notebook 08: where a request's tokens lie, what its slots hold, and two partial results of attention made one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb08_cases as cases

# The solutions. Their text, without what stands in the gaps, is the skeletons in the notebook.


def find_slots(block_table: list[int], length: int, block_size: int) -> list[int]:
    """The slots of a request's first `length` tokens, in order.

    block_table: the request's blocks, in the order of its tokens; the table may be longer than `length` needs. A block
    holds `block_size` tokens; block b has the slots b * block_size to (b + 1) * block_size - 1.
    """
    # your turn: for each token, which entry of the table, and which place in that block?
    return [
        block_table[position // block_size] * block_size + position % block_size for position in range(length)
    ]  # fmt: skip
    # end


def slot_parts(stored: int, final: int, held: int) -> tuple[int, int, int]:
    """The slots that a request holds, in three parts: with a token, to be filled later, never to be filled.

    stored: tokens that lie in its slots now. final: tokens that it will have stored when it ends. held: slots that it
    holds now. Where blocks are taken as tokens come, it may hold fewer than it will need.
    """
    # your turn: how many of the slots held will ever be used?
    used = min(final, held)
    return stored, used - stored, held - used
    # end


def merge(out_a: list[float], lse_a: float, out_b: list[float], lse_b: float) -> tuple[list[float], float]:
    """Attention over two sets of keys, from the results over each: the result and its log-sum-exp.

    A result is the mean of its keys' values, weighted by e ** score and divided by the sum of the weights; its
    log-sum-exp is the natural logarithm of that sum. -inf: no keys were seen, and what stands in that result may be
    NaN. If none were seen at all, the result is zeros. Scores may be in the hundreds: e ** 800 is no float.
    """
    # your turn: what does each result weigh, and what if one of them weighs nothing?
    from math import exp, inf, log

    seen = [(out, lse) for out, lse in ((out_a, lse_a), (out_b, lse_b)) if lse > -inf]
    if not seen:
        return [0.0] * len(out_a), -inf
    top = max(lse for _, lse in seen)
    weights = [exp(lse - top) for _, lse in seen]
    total = sum(weights)
    columns = zip(*(out for out, _ in seen), strict=True)
    return [sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns], top + log(total)
    # end


def _as_slots(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `kernels.reference.attention.slots_of`: asked for every request in every layer."""

    def slots_of(table: Any, length: int, block_size: int) -> Any:
        return table.new_tensor(function(table.tolist(), length, block_size))

    return slots_of


def _as_merge(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For the merge of cascade attention: asked for every token and head."""

    def merge_states(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Any:
        rows = [one.flatten(0, 1).tolist() for one in (out_a, lse_a, out_b, lse_b)]
        merged = [function(*row) for row in zip(*rows, strict=True)]
        out, lse = (one.new_tensor(part) for one, part in zip((out_a, lse_a), zip(*merged, strict=True), strict=True))
        return out.view_as(out_a), lse.view_as(lse_a)

    return merge_states


EXERCISES = (
    Exercise(
        notebook="08",
        id="slots",
        title="Where the tokens lie",
        difficulty=1,
        minutes=8,
        statement="Attention asks where the keys of a request are. Its tokens are numbered from 0; they lie in the "
        "blocks that its block table names, `block_size` to a block. Return the slot of each token.",
        function=find_slots,
        reference=cases.slots_by_walking,
        examples=(
            Example(([5, 2, 7], 6, 4), [20, 21, 22, 23, 8, 9], "block 5 begins at slot 20, block 2 at slot 8"),
            Example(([3, 0], 2, 1), [3, 0], "with blocks of one token the table is the answer"),
            Example(([6, 1], 3, 16), [96, 97, 98], "the table may be longer than needed"),
        ),
        cases=cases.slot_cases,
        hints=(
            "Token 9, blocks of 4: the how-manieth block of the request is it in, and at which place there?",
            "position // block_size counts whole blocks before it; position % block_size is its place in its block. "
            "The table says which block that is.",
            "For each position in range(length): block_table[position // block_size] * block_size + "
            "position % block_size.",
        ),
        mutants=(
            Mutant("no table", "block_table[position // block_size]", "(position // block_size)"),
            Mutant("no place in the block", "+ position % block_size", "+ 0"),
            Mutant("the position as the place", "position % block_size for", "position for"),
            Mutant("blocks as slots", "] * block_size", "]"),
            Mutant("the remainder asks the table", "block_table[position // block_size]",
                   "block_table[position % len(block_table)]"),
            Mutant("one token too few", "range(length)", "range(length - 1)"),
            Mutant("all that the table holds", "range(length)", "range(len(block_table) * block_size)"),
        ),
        swap=Swap("kernels.reference.attention", "", "slots_of", _as_slots),
    ),
    Exercise(
        notebook="08",
        id="slot-parts",
        title="What a request's slots hold",
        difficulty=1,
        minutes=8,
        statement="A request has `stored` tokens now and will have `final` when it ends; it holds `held` slots. "
        "Account for each slot: it has a token now, or it will have one before the request ends (*reserved*), or it "
        "never will (*internal* waste). Return these three counts. With a block table `held` may be less than `final`.",
        function=slot_parts,
        reference=cases.parts_by_cells,
        examples=(
            Example((5, 12, 16), (5, 7, 4), "16 reserved, 12 will be used"),
            Example((5, 12, 8), (5, 3, 0), "two blocks of 4: the others come later"),
            Example((12, 12, 12), (12, 0, 0)),
        ),
        cases=cases.part_cases,
        hints=(
            "Which of the slots held will have a token when the request ends?",
            "The first final of them, or all if there are fewer. Those are the ones that are used, now or later; the "
            "three parts add up to held.",
            "used = min(final, held); then stored, used - stored and held - used.",
        ),
        mutants=(
            Mutant("all of a reservation is reserved", "used = min(final, held)", "used = held"),
            Mutant("more than is held", "used = min(final, held)", "used = final"),
            Mutant("nothing comes later", "used = min(final, held)", "used = stored"),
            Mutant("the larger", "min(final, held)", "max(final, held)"),
            Mutant("counted twice", "held - used", "held - stored"),
            Mutant("the wrong way round", "used - stored, held - used", "held - used, used - stored"),
        ),
        swap=Swap("workbench.measure.kv_waste", "", "parts", lambda function, original: function),
    ),
    Exercise(
        notebook="08",
        id="merge",
        title="Two partial results made one",
        difficulty=2,
        minutes=20,
        statement="A request's keys were attended to in two parts, by two programs that knew nothing of each other. "
        "Each left its result (`out_a`, `out_b`) and its log-sum-exp (`lse_a`, `lse_b`). Make of them what one program "
        "would have found over all keys: the result and its log-sum-exp. A log-sum-exp of -inf says that no keys were "
        "seen; what stands in that result may be NaN and must not be looked at. If neither saw a key, return zeros and "
        "-inf.",
        function=merge,
        reference=cases.merged_by_decimals,
        examples=(
            Example(([1.0, 3.0], 0.0, [3.0, 5.0], 0.0), ([2.0, 4.0], 0.6931471805599453), "equal weights: e⁰ + e⁰ = 2"),
            Example(([4.0], 700.0, [8.0], -50.0), ([4.0], 700.0), "what weighs e⁷⁵⁰ times less changes no digit"),
        ),
        cases=cases.merge_cases,
        hints=(
            "A result was divided by the sum of its weights. Which number gives you that sum back?",
            "e ** lse is that sum. The merged result is the mean of both, weighted by e ** lse_a and e ** lse_b; the "
            "merged log-sum-exp is the logarithm of their sum. Subtract the larger lse first, and leave out what is "
            "-inf.",
            "top = max(lse_a, lse_b); weights exp(lse_a - top) and exp(lse_b - top); their sum is total; each number "
            "is (weight_a * a + weight_b * b) / total, and the new lse is top + log(total). A state with -inf is not "
            "looked at; two of them give zeros and -inf.",
        ),
        mutants=(
            Mutant("the plain mean", "weights = [exp(lse - top) for _, lse in seen]", "weights = [1.0] * len(seen)"),
            Mutant("not divided", ") / total for", ") for"),
            Mutant("the sum of logarithms", "top + log(total)", "sum(lse for _, lse in seen)"),
            Mutant("only the larger", "top + log(total)", "top"),
            Mutant("nothing subtracted", "top = max(lse for _, lse in seen)", "top = 0.0"),
            Mutant("powers of two", "exp(lse - top)", "2.0 ** (lse - top)"),
            Mutant("weighed by the logarithm", "exp(lse - top)", "abs(lse)"),
            Mutant("an empty one is looked at", "if lse > -inf", "if lse > -inf or lse_a + lse_b > -inf or True"),
        ),
        swap=Swap("kernels.triton.cascade", "", "merge_states", _as_merge),
    ),
)  # fmt: skip
