"""Notebook 05: KV heads averaged in groups, and a query that is compared with latents as they lie in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb05_cases as cases

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def mean_pool(rows: list[list[float]], num_kv_heads: int, groups: int) -> list[list[float]]:
    """The key (or value) projection of a model with `groups` KV heads in place of `num_kv_heads`.

    rows: the matrix, head after head, each head the same number of rows. A group is as many neighbouring heads as
    num_kv_heads / groups says, and its one head is their mean: row by row, number by number.
    """
    # your turn: which rows are the same row of a group's heads? Average those.
    head_dim, size = len(rows) // num_kv_heads, num_kv_heads // groups
    result = []
    for group in range(groups):
        for row in range(head_dim):
            same = [rows[(group * size + head) * head_dim + row] for head in range(size)]
            result.append([sum(numbers) / size for numbers in zip(*same, strict=True)])
    return result
    # end


def absorb(query: list[float], key_up: list[list[float]]) -> list[float]:
    """The query of one head, to be multiplied with latents instead of with keys.

    key_up: the matrix that makes a key of a latent, one row for each number of the key: key[i] is the sum of
    key_up[i][r] * latent[r]. The result has as many numbers as a latent; its product with any latent is that of the
    query with the key.
    """
    # your turn: no latent is here. Which of its numbers meets which part of the query?
    rank = len(key_up[0])
    return [sum(number * row[r] for number, row in zip(query, key_up, strict=True)) for r in range(rank)]
    # end


def _as_pooled(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `kv_heads.pooled`: matrices as lists; what is no matrix (a bias) as a matrix of one column."""

    def pooled(rows: Any, num_kv_heads: int, groups: int) -> Any:
        matrix = rows if rows.dim() == 2 else rows[:, None]
        found = matrix.new_tensor(function(matrix.tolist(), num_kv_heads, groups))
        return found if rows.dim() == 2 else found[:, 0]

    return pooled


def _as_absorb(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For the attention backend's `absorb`: asked for each token and head; the rotated part of a query stays."""

    def absorb(q: Any, key_up: Any) -> Any:
        nope, ups = key_up.shape[1], key_up.tolist()
        heads = [
            [function(one[:nope], up) + one[nope:] for one, up in zip(token, ups, strict=True)] for token in q.tolist()
        ]
        return q.new_tensor(heads)

    return absorb


_FOUR = [[1.0, 2.0], [3.0, 4.0], [5.0, 0.0], [1.0, 8.0]]
_UP = [[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]]

EXERCISES = (
    Exercise(
        notebook="05",
        id="mean-pool",
        title="Heads averaged in groups",
        difficulty=1,
        minutes=10,
        statement="A model has one KV head for each query head, and shall have fewer. The projection that makes its "
        "keys is a matrix whose rows stand head after head. Average neighbouring heads: of each group the first rows "
        "with one another, then the second rows, and so on. The same function serves the values' projection.",
        function=mean_pool,
        reference=cases.pooled_by_sums,
        examples=(
            Example((_FOUR, 4, 2), [[2.0, 3.0], [3.0, 4.0]], "four heads of one row"),
            Example((_FOUR, 2, 1), [[3.0, 1.0], [2.0, 6.0]], "two heads of two rows: row 0 meets row 2"),
            Example((_FOUR, 4, 4), [[1.0, 2.0], [3.0, 4.0], [5.0, 0.0], [1.0, 8.0]], "a group of one head"),
        ),
        cases=cases.pool_cases,
        given={"rows": _FOUR},
        hints=(
            "How many rows has a head, and how many heads has a group?",
            "Row r of head h is row h × head_dim + r of the matrix. A group's row r is the mean of row r of all its "
            "heads, and its heads are size neighbours: group × size up to group × size + size − 1.",
            "Two loops, over groups and over the rows of a head. Inside: collect the rows "
            "rows[(group * size + head) * head_dim + row] of the group's heads, and average them number by number.",
        ),
        mutants=(
            Mutant("neighbouring rows", "(group * size + head) * head_dim + row", "group * size * head_dim + head"),
            Mutant("every groups-th head", "(group * size + head)", "(group + head * groups)"),
            Mutant("the sum", "sum(numbers) / size", "sum(numbers)"),
            Mutant("the first head", "sum(numbers) / size", "numbers[0]"),
            Mutant("divided by the groups", "sum(numbers) / size", "sum(numbers) / groups"),
            Mutant("rows of all heads", "len(rows) // num_kv_heads, num", "len(rows) // groups, num"),
        ),
        swap=Swap("workbench.model.weights.kv_heads", "", "pooled", _as_pooled),
    ),
    Exercise(
        notebook="05",
        id="absorb",
        title="The matrix goes to the query",
        difficulty=2,
        minutes=15,
        statement="With latent attention the cache holds a latent for each token, and a matrix makes a head's key of "
        "it. To compare one query with a thousand tokens you could make a thousand keys. Change the query instead, "
        "once: return the vector whose product with a latent equals the product of the query with the key made of it.",
        function=absorb,
        reference=cases.absorbed_by_probes,
        examples=(
            Example(([1.0, 0.0], _UP), [1.0, 0.0, 2.0], "a query that looks at the key's first number only"),
            Example(([2.0, 1.0], _UP), [2.0, 3.0, 5.0]),
            Example(([-1.0, 0.5], _UP), [-1.0, 1.5, -1.5], "numbers of a query may be negative"),
        ),
        cases=cases.absorb_cases,
        given={"key_up": _UP},
        hints=(
            "Write the product of query and key out as a double sum. Which of the two sums can be done without the "
            "latent?",
            "q · (U c) = Σᵢ qᵢ Σᵣ Uᵢᵣ cᵣ = Σᵣ (Σᵢ qᵢ Uᵢᵣ) cᵣ. What stands in brackets is the result's number r: the "
            "query times the transposed matrix.",
            "For every column r of key_up: the sum over i of query[i] * key_up[i][r].",
        ),
        mutants=(
            Mutant("rows for columns", "row[r] for number, row in zip(query, key_up, strict=True)",
                   "entry for number, entry in zip(query, key_up[r % len(key_up)])"),
            Mutant("one number too few", "range(rank)", "range(rank - 1)"),
            Mutant("the query left out", "number * row[r]", "row[r]"),
            Mutant("only its size", "number * row[r]", "abs(number) * row[r]"),
            Mutant("columns backwards", "row[r]", "row[-1 - r]"),
        ),
        swap=Swap("workbench.attention.torch_native", "", "absorb", _as_absorb),
    ),
)  # fmt: skip
