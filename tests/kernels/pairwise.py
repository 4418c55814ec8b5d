"""A small set of cases in which every pair of values of any two factors meets at least once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import Any

TRIES = 60
"""Random cases among which the one with the most pairs still missing is taken."""


def cover(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Cases, each a value for every factor. Greedy: near the least number, the product of the two longest factors."""
    draw = Random(seed)
    names = list(factors)
    # Places in the lists stand for values, which need not be hashable.
    places = {name: range(len(factors[name])) for name in names}
    missing = {
        ((a, i), (b, j)): None for a, b in combinations(names, 2) for i, j in product(places[a], places[b])
    }  # a dict, not a set: the same order in every run
    cases = []
    while missing:
        wanted = dict(next(iter(missing)))

        def filled(wanted: dict[str, int] = wanted) -> dict[str, int]:
            return {name: wanted.get(name, draw.choice(places[name])) for name in names}

        best = max((filled() for _ in range(TRIES)), key=lambda case: sum(pair in missing for pair in _pairs(case)))
        for pair in _pairs(best):
            missing.pop(pair, None)
        cases.append({name: factors[name][place] for name, place in best.items()})
    return cases


def _pairs(case: Mapping[str, int]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return list(combinations(case.items(), 2))
