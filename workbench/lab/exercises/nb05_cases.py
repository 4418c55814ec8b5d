"""Right answers for the exercises of notebook 05, found in other ways, and the cases they are checked with."""

from __future__ import annotations

from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed

Matrix = list[list[float]]


def pooled_by_sums(rows: Matrix, num_kv_heads: int, groups: int) -> Matrix:
    """Every row is added, divided, to the one row of the result that it belongs to."""
    head_dim, size = len(rows) // num_kv_heads, num_kv_heads // groups
    result = [[0.0] * len(rows[0]) for _ in range(groups * head_dim)]
    for number, row in enumerate(rows):
        head, place = divmod(number, head_dim)
        for column, value in enumerate(row):
            result[head // size * head_dim + place][column] += value / size
    return result


def absorbed_by_probes(query: list[float], key_up: Matrix) -> list[float]:
    """A latent that is 1 in one place and 0 elsewhere reads one number of the result: make its key, compare."""
    found = []
    for place in range(len(key_up[0])):
        latent = [float(number == place) for number in range(len(key_up[0]))]
        key = [sum(weight * number for weight, number in zip(row, latent, strict=True)) for row in key_up]
        found.append(sum(a * b for a, b in zip(query, key, strict=True)))
    return found


def pool_cases() -> list[Case]:
    draw, cases = Random("mean-pool"), []

    def add(family: str, name: str, num_kv_heads: int, head_dim: int, groups: int, width: int, help_: str = "") -> None:
        arguments: tuple[Any, ...] = (_matrix(draw, num_kv_heads * head_dim, width), num_kv_heads, groups)
        cases.append(Case(family, name, fixed(*arguments), pooled_by_sums, 1e-9, 1e-12, help_))

    for number, (heads, dim, groups) in enumerate(((8, 2, 4), (8, 3, 2), (6, 2, 3), (6, 4, 2), (12, 1, 4))):
        add("random", str(number), heads, dim, groups, draw.randint(1, 5))
    add("ragged", "nine heads in three groups", 9, 2, 3, 4, "numbers of heads need not be powers of two")
    add("ragged", "fifteen heads in five groups", 15, 3, 5, 2)
    add("single", "multi-query: one group", 8, 2, 1, 3, "all heads become one")
    add("single", "one head stays one", 1, 4, 1, 3)
    add("single", "as many groups as heads", 5, 2, 5, 3, "nothing changes")
    add("narrow", "one column", 4, 3, 2, 1)
    return cases


def absorb_cases() -> list[Case]:
    draw, cases = Random("absorb"), []

    def add(family: str, name: str, nope: int, rank: int, help_: str = "") -> None:
        arguments: tuple[Any, ...] = (_vector(draw, nope), _matrix(draw, nope, rank))
        cases.append(Case(family, name, fixed(*arguments), absorbed_by_probes, 1e-9, 1e-12, help_))

    for number in range(4):
        add("random", str(number), draw.randint(2, 6), draw.randint(2, 6))
    for size in (2, 3, 5):
        add("square", f"keys and latents of {size}", size, size, "a square matrix hides which side is which")
    add("wide", "latents longer than keys", 3, 11, "as in DeepSeek-V2: 512 numbers against 128")
    add("tall", "latents shorter than keys", 9, 2)
    add("single", "a latent of one number", 4, 1)
    add("single", "a key of one number", 1, 4)
    return cases


def _vector(draw: Random, length: int) -> list[float]:
    return [draw.uniform(-2, 2) for _ in range(length)]


def _matrix(draw: Random, rows: int, columns: int) -> Matrix:
    return [_vector(draw, columns) for _ in range(rows)]
