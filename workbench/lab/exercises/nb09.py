"""Notebook 09: a number rounded onto a grid, and a range cut where the squared error is least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb09_cases as cases

# The solutions. Their text, without what stands in the gaps, is the skeletons in the notebook.


def round_to_grid(x: float, magnitudes: list[float]) -> float:
    """What x becomes in a format: the nearest of its numbers.

    magnitudes: the numbers of the format from 0 up, rising; a negative x becomes one of them with a minus sign. Halfway
    between two, the one at an even place in the list is taken (places count from 0): its last bit is 0. What lies
    beyond the largest becomes the largest.
    """
    # your turn: of all places in the list, which is nearest to |x|? And if two are?
    size = abs(x)
    place = min(range(len(magnitudes)), key=lambda at: (abs(size - magnitudes[at]), at % 2))
    return -magnitudes[place] if x < 0 else magnitudes[place]
    # end


def best_clip(numbers: list[float], largest_code: int, shares: list[float]) -> float:
    """Which share of the largest magnitude to cover, so that the squared error of all numbers is least.

    With share s the scale is s * (the largest magnitude) / largest_code. A number becomes a code, the whole number
    nearest to number / scale, but none beyond largest_code or below -largest_code; it comes back as code * scale.
    (Halfway between two codes take either: the error is the same.)
    shares: those to try, falling. Of several with the same error the first is taken, so too where all numbers are 0.
    """
    # your turn: a scale for each share, a code for each number, the squares of what is lost
    reach, errors = max(abs(x) for x in numbers), []
    for share in shares:
        scale = share * reach / largest_code or 1.0
        codes = [max(-largest_code, min(largest_code, round(x / scale))) for x in numbers]
        errors.append(sum((x - code * scale) ** 2 for x, code in zip(numbers, codes, strict=True)))
    return shares[errors.index(min(errors))]
    # end


def _as_round_to(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `core.round_to`: every number of a tensor asks the function. Formats of more than 8 bits keep the engine's
    own, whose lists would be long."""
    import torch

    from workbench.quant.formats import decode

    def round_to(x: Any, format: Any, *options: Any, **named: Any) -> Any:
        if options or named or format.bits > 8:
            return original(x, format, *options, **named)
        magnitudes = decode(torch.arange(format.max_code + 1), format).tolist()
        found = [function(one, magnitudes) for one in x.double().flatten().tolist()]
        return torch.tensor(found, dtype=torch.float32, device=x.device).view(x.shape)

    return round_to


TRIED = [1 - 0.05 * step for step in range(14)]
"""Shares that the engine lets a reader's function choose from."""


def _as_observe(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `rtn.observe`: with the observer ``mse`` the function says for each block how much of its range to cover."""

    def observe(x: Any, args: Any, *options: Any, **named: Any) -> Any:
        import torch

        from workbench.quant.core import blocked, observed

        if args.observer != "mse" or args.type != "int" or not args.symmetric:
            return original(x, args, *options, **named)
        view = blocked(x.float(), args.block_size(x.shape)).transpose(1, 2).flatten(2)
        shares = [
            [function(block.tolist(), int(args.max), TRIED) if bool(block.any()) else 1.0 for block in row]
            for row in view
        ]
        keep = torch.tensor(shares, device=x.device)
        return tuple(end * keep for end in observed(x, args))

    return observe


_NUMBERS = [0.3, -0.4, 0.2, 0.5, -0.1, 2.1]

EXERCISES = (
    Exercise(
        notebook="09",
        id="round-to-grid",
        title="To the nearest number of a format",
        difficulty=1,
        minutes=10,
        statement="A format is a list of numbers, and rounding is choosing one. Write it for any list: the nearest, "
        "halfway the one whose last bit is 0, and beyond the end the end.",
        function=round_to_grid,
        reference=cases.rounded_by_midpoints,
        examples=(
            Example((7.6, cases.E2M1), 6.0, "beyond the largest"),
            Example((2.2, cases.E2M1), 2.0),
            Example((-2.6, cases.E2M1), -3.0, "a negative number"),
            Example((2.5, cases.E2M1), 2.0, "halfway between place 4 and place 5: the even one"),
            Example((5.0, cases.E2M1), 4.0, "halfway between place 6 and place 7"),
        ),
        cases=cases.round_cases,
        given={"e2m1": cases.E2M1},
        hints=(
            "Forget the sign first. How far is |x| from each number of the list, and which do you take of two "
            "equally far?",
            "The distance to place i is abs(abs(x) - magnitudes[i]). Of two places at the same distance one is even: "
            "neighbours differ by 1.",
            "min(range(len(magnitudes)), key=...) with a pair as key: first the distance, then place % 2. Then give "
            "the number its sign back.",
        ),
        mutants=(
            Mutant("ties down", "at % 2)", "at)"),
            Mutant("ties up", "at % 2)", "-at)"),
            Mutant("ties to odd", "at % 2)", "-(at % 2))"),
            Mutant("the sign lost", "-magnitudes[place] if x < 0 else magnitudes[place]", "magnitudes[place]"),
            Mutant("the sign kept while comparing", "size = abs(x)", "size = x"),
            Mutant("cut off, not rounded", "(abs(size - magnitudes[at]), at % 2)",
                   "(magnitudes[at] > size, -at)"),
        ),
        swap=Swap("workbench.quant.core", "", "round_to", _as_round_to),
    ),
    Exercise(
        notebook="09",
        id="best-clip",
        title="Where to cut a range",
        difficulty=2,
        minutes=20,
        statement="A scale that covers the largest number rounds all others coarsely; a smaller one cuts it off. Try "
        "shares of the range: scale, code, back again, squared error. Return the share that loses least.",
        function=best_clip,
        reference=cases.clipped_by_squares,
        examples=(
            Example(([7.0, -7.0, 3.0, 1.0], 7, [1.0, 0.5]), 1.0, "nothing is lost with a scale of 1"),
            Example(([3.0, -3.0, 1.0, 2.0, -2.0, 4.0], 3, [1.0, 0.75]), 0.75, "scale 1: five exact, one off by 1"),
            Example((_NUMBERS, 1, [1.0, 0.5, 0.25]), 1.0, "one giant, three codes"),
            Example(([1.0, 2.0, 4.0], 1, [1.0, 0.5]), 1.0, "both lose 5: the first"),
        ),
        cases=cases.clip_cases,
        given={"numbers": _NUMBERS},
        hints=(
            "What are the two kinds of error, and which of them falls when the share falls?",
            "For one share: scale = share * largest / largest_code. A code never leaves -largest_code ... "
            "largest_code, so a number beyond comes back as largest_code * scale.",
            "Collect one sum of (x - code * scale) ** 2 for each share; return shares[errors.index(min(errors))].",
        ),
        mutants=(
            Mutant("no clamping", "max(-largest_code, min(largest_code, round(x / scale)))", "round(x / scale)"),
            Mutant("no rounding", "round(x / scale)", "x / scale"),
            Mutant("clamped above only", "max(-largest_code, min(largest_code, round(x / scale)))",
                   "min(largest_code, round(x / scale))"),
            Mutant("the largest, not the largest magnitude", "max(abs(x) for x in numbers)", "abs(max(numbers))"),
            Mutant("errors, not their squares", "(x - code * scale) ** 2", "abs(x - code * scale)"),
            Mutant("errors that cancel", "(x - code * scale) ** 2", "(x - code * scale)"),
            Mutant("the worst share", "min(errors))", "max(errors))"),
            Mutant("the last of equal shares", "errors.index(min(errors))",
                   "len(errors) - 1 - errors[::-1].index(min(errors))"),
            Mutant("no scale where all is 0", " or 1.0", ""),
            Mutant("one code too few", "reach / largest_code", "reach / (largest_code + 1)"),
        ),
        swap=Swap("workbench.quant.algorithms.rtn", "", "observe", _as_observe),
    ),
)  # fmt: skip
