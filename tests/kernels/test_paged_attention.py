"""The specification of paged attention against attention written query by query, without a cache."""

from __future__ import annotations

import pytest
import torch

from tests.attention.paged_batches import HEADS, Case, random_case


def attend(case: Case, cache: torch.Tensor, window: int | None = None) -> torch.Tensor:
    return case.attend("reference", cache, window)


@pytest.mark.parametrize("block_size", [1, 16, 17])
@pytest.mark.parametrize("seed", range(12))
def test_the_reference_equals_dense_attention(seed: int, block_size: int) -> None:
    case = random_case(seed, block_size)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("window", [None, 4])
def test_every_ratio_of_heads(heads: int, kv_heads: int, window: int | None) -> None:
    case = Case([(9, 1), (7, 7), (12, 3)], heads, kv_heads, 8, 4, window, seed=1)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_a_token_sees_itself_and_what_came_before() -> None:
    """Changing a later token's key and value changes nothing for an earlier query."""
    case = Case([(10, 10)], 2, 1, 8, 4, None, seed=0)
    before = attend(case, case.cache)
    changed = case.cache.clone()
    changed[case.tables[0][6 // 4], 6 % 4] += 1.0
    after = attend(case, changed)
    assert torch.equal(before[:6], after[:6])
    assert (before[6:] != after[6:]).flatten(1).any(1).all()


def test_a_window_ends_where_it_says() -> None:
    """With a window of 4, token 9 sees 6 … 9."""
    case = Case([(10, 1)], 2, 1, 8, 4, 4, seed=0)
    before = attend(case, case.cache)
    for position, seen in ((5, False), (6, True), (9, True)):
        changed = case.cache.clone()
        changed[case.tables[0][position // 4], position % 4] += 1.0
        assert torch.equal(before, attend(case, changed)) is not seen


def test_columns_of_a_table_past_the_length_are_not_read() -> None:
    case = Case([(5, 1), (40, 40)], 2, 1, 8, 4, None, seed=0)
    expected = attend(case, case.cache)
    case.batch.block_tables[0, 2:] = 10**6
    assert torch.equal(attend(case, case.cache), expected)


def test_empty_requests_and_rows_that_see_nothing() -> None:
    case = Case([(0, 0), (0, 1), (5, 1), (9, 0), (2, 4), (0, 3)], 4, 2, 8, 4, None, seed=0)
    out = attend(case, case.poisoned())
    torch.testing.assert_close(out, case.dense(), atol=1e-5, rtol=1e-5)
    assert not out[[0, 2, 3]].any() and out[[1, 4, 5]].any()
