"""Notebook 10: a group rounded to a few bits, numbers packed into words, and an error made good by what is to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb10_cases as cases

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def round_group(numbers: list[float], bits: int) -> tuple[list[int], float, int]:
    """Codes, scale and zero point of a group of weights: each is (code - zero) * scale again.

    Codes and the zero point are whole numbers from 0 to 2 ** bits - 1. The range goes from the least to the largest
    number and always holds 0, so that 0 stays exactly 0. A group of zeros has scale 1. A code is the
    rounded number / scale, plus zero, kept inside: `round` takes ties to the even number before zero is added.
    """
    # your turn: in how many steps is the range cut, and which code stands for 0?
    top = 2**bits - 1
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    scale = (high - low) / top or 1.0
    zero = min(max(round(-low / scale), 0), top)
    codes = [min(max(round(number / scale) + zero, 0), top) for number in numbers]
    return codes, scale, zero
    # end


def pack_numbers(numbers: list[int], bits: int) -> list[int]:
    """Numbers of `bits` bits in words of 32, the first number in the lowest bits; bits divides 32.

    The last word is filled up with zeros. Words are int32, as checkpoints keep them: from -2 ** 31 to 2 ** 31 - 1, the
    highest bit counting negative.
    """
    # your turn: how many numbers has a word, and by how many bits is each moved up?
    each, words = 32 // bits, []
    for start in range(0, len(numbers), each):
        word = sum(number << place * bits for place, number in enumerate(numbers[start : start + each]))
        words.append(word - 2**32 if word >= 2**31 else word)
    return words
    # end


def make_good(weights: list[float], rounded: float, factors: list[float]) -> list[float]:
    """What the weights after the first become, once the first was rounded.

    weights: of one output, the first is the one that became `rounded`. factors: the first one's row of U, from the
    diagonal on, where U is upper triangular and U.T @ U the inverse of Σxxᵀ. The result has one number less.
    """
    # your turn: the error, by the diagonal; each other weight gives its factor times that.
    error = (weights[0] - rounded) / factors[0]
    return [weight - error * factor for weight, factor in zip(weights[1:], factors[1:], strict=True)]
    # end


def _as_rtn(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `calibrate.rtn`: whole numbers with zero points in groups; anything else stays the engine's own."""

    def rtn(weight: Any, args: Any, stats: Any = None, name: str = "weight") -> Any:
        import torch

        from workbench.quant.core import QParams
        from workbench.quant.result import QuantizedWeight, report

        if args.type != "int" or args.symmetric or args.strategy != "group" or args.scale != "fp32":
            return original(weight, args, stats, name)
        width, half = args.block_size(weight.shape, name)[1], 1 << args.bits - 1
        rows, across = weight.shape[0], weight.shape[1] // width
        made = [function(group, args.bits) for group in weight.float().reshape(-1, width).tolist()]
        codes = torch.tensor([codes for codes, _, _ in made]).reshape(weight.shape) - half
        scale = torch.tensor([scale for _, scale, _ in made]).reshape(rows, across)
        zero = torch.tensor([zero for _, _, zero in made]).reshape(rows, across) - half
        found = QuantizedWeight(codes.to(torch.int8), QParams(scale, zero.to(torch.int8)), args)
        return found, report(name, "rtn", weight, found.dequantize(), stats)

    return rtn


def _as_pack(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For a codec's `pack`: row by row."""

    def packed(numbers: Any, bits: int) -> Any:
        import torch

        return torch.tensor([function(row, bits) for row in numbers.tolist()], dtype=torch.int32)

    return packed


def _as_compensate(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For GPTQ's `compensate`: output by output."""

    def compensated(columns: Any, rounded: Any, factors: Any) -> Any:
        error, row = (columns[0] - rounded) / factors[0], factors.tolist()
        outputs = zip(columns.T.tolist(), rounded.tolist(), strict=True)
        found = [function(weights, one, row) for weights, one in outputs]
        columns[1:] = columns.new_tensor(found).reshape(columns.shape[1], -1).T
        return error

    return compensated


_GROUP = [-1.0, 0.0, 0.3, 2.0]

EXERCISES = (
    Exercise(
        notebook="10",
        id="round-group",
        title="A group in a few bits",
        difficulty=1,
        minutes=10,
        statement="Round a group of weights to whole numbers of a few bits, each to its nearest, with one scale and "
        "one zero point for all. The zero point is a whole number too: the code that stands for 0. A code is "
        "round(number / scale) + zero, kept inside.",
        function=round_group,
        reference=cases.group_by_trying,
        examples=(
            Example((_GROUP, 2), ([0, 1, 1, 3], 1.0, 1), "two bits: codes 0 to 3, a step of 1"),
            Example(([0.0, 3.0, 7.5, 1.0], 4), ([0, 6, 15, 2], 0.5, 0), "nothing below 0: the zero point is 0"),
            Example(([-3.0, -1.5, -0.2], 2), ([0, 1, 3], 1.0, 3), "nothing above 0; -1.5 is a tie"),
        ),
        cases=cases.group_cases,
        given={"numbers": _GROUP},
        hints=(
            "Codes go from 0 to 2 ** bits − 1. How many steps lie between the least and the largest number?",
            "scale = (high − low) / (2 ** bits − 1), where low is at most 0 and high at least 0; a scale of 0 becomes "
            "1. Code 0 stands for low, so the zero point is −low / scale, rounded.",
            "zero = round(−low / scale); each code is round(number / scale) + zero, and both are kept inside 0 to "
            "2 ** bits − 1 by min and max.",
        ),
        mutants=(
            Mutant("one step too many", "2**bits - 1", "2**bits"),
            Mutant("a range without 0", "min(0.0, *numbers), max(0.0, *numbers)", "min(numbers), max(numbers)"),
            Mutant("cut off, not rounded", "round(number / scale) + zero", "int(number / scale) + zero"),
            Mutant("the zero point forgotten", "round(number / scale) + zero", "round(number / scale)"),
            Mutant("the zero point cut off", "round(-low / scale)", "int(-low / scale)"),
            Mutant("not kept inside", "min(max(round(number / scale) + zero, 0), top)", "round(number / scale) + zero"),
            Mutant("a scale of 0", "(high - low) / top or 1.0", "max((high - low) / top, 1e-30)"),
            Mutant("rounded once", "round(number / scale) + zero", "round(number / scale - low / scale)"),
        ),
        swap=Swap("workbench.compress.calibrate", "", "rtn", _as_rtn),
    ),
    Exercise(
        notebook="10",
        id="pack",
        title="Eight numbers in a word",
        difficulty=1,
        minutes=10,
        statement="Checkpoints keep eight numbers of 4 bits (or four of 8) in one int32. Pack a row, the first number "
        "in the lowest bits. A word whose highest bit is set is negative.",
        function=pack_numbers,
        reference=cases.packed_by_bits,
        examples=(
            Example(([1, 2, 3, 4, 5, 6, 7, 0], 4), [0x07654321], "read the hexadecimal digits from the right"),
            Example(([0, 0, 0, 0, 0, 0, 0, 15], 4), [-0x10000000], "the highest bit counts negative"),
            Example(([9, 200, 3, 4, 5], 8), [0x0403C809, 5], "two words, the second filled up"),
        ),
        cases=cases.pack_cases,
        hints=(
            "How many numbers of 4 bits fit into 32 bits, and where does number i of a word begin?",
            "Number i of a word stands at bit i × bits: it is multiplied by 2 ** (i × bits), and a word is the sum. "
            "From 2 ** 31 on, subtract 2 ** 32.",
            "For each stretch of 32 // bits numbers: word = sum(number << i * bits); append word − 2 ** 32 if "
            "word >= 2 ** 31, else word.",
        ),
        mutants=(
            Mutant("the first number highest", "number << place * bits", "number << 32 - bits - place * bits"),
            Mutant("without a sign", "word - 2**32 if word >= 2**31 else word", "word"),
            Mutant("moved by 4 always", "place * bits", "place * 4"),
            Mutant("neighbours swapped", "place * bits", "(place ^ 1) * bits"),
            Mutant("the last word lost", "range(0, len(numbers), each)", "range(0, len(numbers) // each * each, each)"),
            Mutant("the sign of another width", "word >= 2**31", "word > 2**31"),
        ),
        swap=Swap("workbench.quant.codecs.gptq", "", "pack", _as_pack),
    ),
    Exercise(
        notebook="10",
        id="compensate",
        title="An error made good",
        difficulty=2,
        minutes=15,
        statement="GPTQ rounds one weight after the other. Each time the weights of the same output that are still to "
        "come change so that the output, over the calibration tokens, moves as little as it can. How much each gives "
        "stands in a row of U.",
        function=make_good,
        reference=cases.compensated_by_inverse,
        examples=(
            Example(([0.5, 0.25], 1.0, [2.0, 1.0]), [0.5], "the error is -0.5, by the diagonal -0.25"),
            Example(([0.5, 0.25, 3.0], 0.0, [1.0, -0.5, 0.0]), [0.5, 3.0], "a factor of 0 changes nothing"),
            Example(([1.0, 2.0, 4.0], 1.0, [0.5, 3.0, -2.0]), [2.0, 4.0], "no error, no change"),
        ),
        cases=cases.compensate_cases,
        hints=(
            "What changed in the first weight, and which number in factors belongs to it?",
            "error = (first − rounded) / factors[0]. A weight further on changes by −error × its factor: rounding down "
            "leaves something out, and the others make up for it.",
            "Return [weight − error * factor for weight and factor of weights[1:] and factors[1:]].",
        ),
        mutants=(
            Mutant("added", "weight - error", "weight + error"),
            Mutant("not by the diagonal", "(weights[0] - rounded) / factors[0]", "weights[0] - rounded"),
            Mutant("times the diagonal", "rounded) / factors[0]", "rounded) * factors[0]"),
            Mutant("the neighbour's factor", "factors[1:]", "factors[:-1]"),
            Mutant("no compensation", "error * factor", "0 * error * factor"),
            Mutant("the weight itself", "weights[0] - rounded", "weights[0]"),
        ),
        swap=Swap("workbench.quant.algorithms.gptq", "", "compensate", _as_compensate),
    ),
)  # fmt: skip
