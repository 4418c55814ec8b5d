"""Every pair of values is met, in not many more cases than the two longest factors need."""

from __future__ import annotations

from itertools import combinations, product

from tests.kernels.pairwise import cover


def test_every_pair_is_met_in_few_cases() -> None:
    factors = {"a": "pqrst", "b": [1, 2, 3, 4], "c": [None, 1.5], "d": [[1], [2], [3]], "e": [False, True]}
    cases = cover(factors)
    for first, second in combinations(factors, 2):
        for x, y in product(factors[first], factors[second]):
            assert any(case[first] == x and case[second] == y for case in cases)
    assert 20 <= len(cases) <= 26
    assert cover(factors) == cases
