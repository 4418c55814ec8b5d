"""Which cached tokens are gathered for a kernel that cannot read pages."""

from tests.attention.paged_batches import Case
from workbench.attention.gather import seen_by


def test_a_window_gathers_only_what_may_be_seen() -> None:
    case = Case([(90, 3), (4, 1), (7, 7)], 4, 2, 8, 4, 5, seed=0)
    seen = seen_by(case.batch, case.window)
    assert seen.counts == [7, 4, 7]
    assert seen.positions.tolist() == [*range(83, 90), *range(4), *range(7)]
    assert seen.owners.tolist() == [0] * 7 + [1] * 4 + [2] * 7


def test_what_is_gathered_is_the_cache_row_of_each_token() -> None:
    case = Case([(9, 2), (17, 17), (1, 1)], 4, 2, 8, 4, None, seed=1)
    seen = seen_by(case.batch, None)
    tables = case.batch.block_tables
    slots = [int(tables[b, p // 4]) * 4 + p % 4 for b, (n, _) in enumerate(case.requests) for p in range(n)]
    assert seen.slots.tolist() == slots
    keys, values = seen.gather(case.cache, case.cache.dtype)
    flat = case.cache.flatten(0, 1)
    assert keys.equal(flat[slots, 0]) and values.equal(flat[slots, 1])
