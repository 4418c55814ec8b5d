"""The C++ kernel against attention written out in float64, in both builds and with any number of threads."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

import kernels
from kernels.cpu import attention, native
from tests.attention.paged_batches import Case, random_case
from tests.kernels.builds import one_build  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_build")


def attend(case: Case, cache: torch.Tensor) -> torch.Tensor:
    return case.attend("cpu", cache)


@pytest.mark.parametrize("block_size", [1, 16, 17, 256])
@pytest.mark.parametrize("seed", range(15))
def test_equals_dense_attention(seed: int, block_size: int) -> None:
    case = random_case(5000 + seed, block_size)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (8, 2), (7, 1), (8, 1), (130, 1), (5, 5)])
@pytest.mark.parametrize("head_dim", [8, 40, 64, 128])
def test_groups_and_widths(heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case([(70, 1), (65, 65), (130, 6)], heads, kv_heads, head_dim, 16, None, seed=heads)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("length", "queries"), [(63, 63), (64, 5), (65, 65), (128, 31), (129, 129), (200, 33), (97, 97)]
)
@pytest.mark.parametrize("window", [None, 1, 16, 63, 64, 65])
def test_prefill_around_the_edges_of_tiles(length: int, queries: int, window: int | None) -> None:
    """Pieces that begin anywhere, tiles that hold few keys, blocks of rows that see none of a tile."""
    case = Case([(length, queries), (3, 3)], 3, 1, 16, 17, window, seed=length)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("queries", [2, 4, 7, 40, 300])
def test_chunks_at_the_end_of_long_contexts(queries: int) -> None:
    case = Case([(1500, queries)], 6, 2, 16, 16, None, seed=queries)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_empty_requests_and_rows_that_see_nothing(window: int | None) -> None:
    """As padding of a recorded step has them. Nothing is read for them, whatever their block tables say."""
    requests = [(0, 0), (0, 1), (5, 1), (9, 0), (2, 4), (0, 3), (10, 40), (70, 70)]
    case = Case(requests, 4, 2, 8, 4, window, seed=0)
    case.batch.block_tables[[0, 1, 3, 5]] = 10**12
    out = attend(case, case.poisoned())
    torch.testing.assert_close(out, case.dense(), atol=1e-5, rtol=1e-5)
    assert not out[[0, 2, 3]].any() and out[[1, 4, 5]].any()


@pytest.mark.parametrize("seed", range(15))
def test_half_precision_caches(seed: int) -> None:
    """The numbers are those of the cache, widened: what the same cache in float32 gives, to the last bit."""
    case = random_case(6000 + seed)
    cache = case.poisoned().half()
    found = attend(case, cache)
    assert torch.equal(found, attend(case, cache.float()))
    torch.testing.assert_close(found, case.attend("reference", cache), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [2, 31, 33, 64, 65, 255, 256, 257, 511, 512, 513, 1025, 2000])
@pytest.mark.parametrize("window", [None, 600])
def test_contexts_cut_into_stretches(length: int, window: int | None) -> None:
    case = Case([(length, 1), (3, 1)], 4, 2, 16, 16, window, seed=length)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def with_threads(threads: int, work: Callable[[], torch.Tensor]) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return work()
    finally:
        torch.set_num_threads(before)


def test_neither_threads_nor_neighbours_change_a_bit() -> None:
    """Also with more threads than there are processors."""
    case = Case([(1200, 1), (64, 64), (33, 1), (900, 9), (1100, 30), (400, 400)], 6, 2, 16, 16, None, seed=1)
    outputs = [with_threads(threads, lambda: attend(case, case.cache)) for threads in (1, 2, 4, 13)]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    for b in range(len(case.requests)):
        begin, end = case.batch.query_start[b], case.batch.query_start[b + 1]
        alone = kernels.paged_attention(
            case.q[begin:end],
            case.cache,
            case.batch.block_tables[b : b + 1],
            [0, end - begin],
            [case.batch.seq_lens[b]],
            scale=case.scale,
            maker="cpu",
        )
        assert torch.equal(alone, outputs[0][begin:end])


def test_scores_far_apart_and_very_large() -> None:
    """The largest score comes first, last, and not at all far from the others; nothing overflows."""
    case = Case([(200, 1), (200, 200)], 2, 1, 8, 16, None, seed=2)
    case.q *= 60
    torch.testing.assert_close(attend(case, case.cache), case.dense(), atol=1e-4, rtol=1e-4)
    case.q.zero_()
    torch.testing.assert_close(attend(case, case.cache), case.dense(), atol=1e-5, rtol=1e-5)


def test_nan_in_a_key_that_is_seen_shows() -> None:
    case = Case([(200, 1)], 2, 1, 8, 16, None, seed=2)
    case.cache[case.tables[0][3], 5, 0] = float("nan")
    assert attend(case, case.cache).isnan().any()


def test_queries_that_are_part_of_a_wider_tensor() -> None:
    case = Case([(40, 1), (20, 20)], 4, 2, 16, 16, None, seed=3)
    wide = torch.full((case.q.shape[0], 8, 16), float("nan"))
    wide[:, :4] = case.q
    expected = attend(case, case.cache)
    case.q = wide[:, :4]
    assert torch.equal(attend(case, case.cache), expected)
    case.q = wide[:, :4].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(attend(case, case.cache), expected)


def test_unaligned_addresses() -> None:
    case = Case([(140, 1), (70, 70)], 4, 2, 16, 16, None, seed=3)
    expected = attend(case, case.cache)
    shifted = torch.zeros(case.q.numel() + 1)[1:].view(case.q.shape).copy_(case.q)
    cache = torch.zeros(case.cache.numel() + 3)[3:].view(case.cache.shape).copy_(case.cache)
    case.q = shifted
    assert torch.equal(attend(case, cache), expected)


def test_a_query_that_is_not_a_number_stays_one() -> None:
    case = Case([(600, 1), (70, 70)], 2, 1, 8, 16, None, seed=2)
    case.q[[0, 20]] = float("nan")
    nan = attend(case, case.cache).isnan()
    assert nan[[0, 20]].all() and not nan[1:20].any() and not nan[21:].any()


STEPS = [
    [(1, 1), (40, 1), (0, 1), (700, 1)],
    [(2, 1), (41, 1), (1, 1), (701, 1)],
    [(1300, 1), (0, 1), (64, 1), (513, 1)],
    [(0, 1), (0, 1), (0, 1), (0, 1)],
]
"""Decodes, of which some rows are padding."""
MIXED = [[(90, 90), (700, 3), (0, 0), (5, 1)], [(5, 1), (0, 0), (600, 90), (3, 3)], [(94, 94), (0, 0), (0, 0), (0, 0)]]
"""The tokens of a step are as many each time, but not whose they are."""


@pytest.mark.parametrize("steps", [STEPS, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize("half", [False, True])
def test_a_recorded_step_follows_what_its_addresses_hold(steps: list[list[tuple[int, int]]], half: bool) -> None:
    """Recorded once; then lengths, starts, tables, queries and the cache change where they lie."""
    cases = [Case(requests, 6, 2, 16, 16, None, seed=i) for i, requests in enumerate(steps)]
    num_blocks, width = max(len(case.cache) for case in cases), 100
    q = torch.zeros_like(cases[0].q)
    cache = torch.zeros((num_blocks, *cases[0].cache.shape[1:]), dtype=torch.float16 if half else torch.float32)
    tables, starts, lengths = (
        torch.zeros(4, width, dtype=torch.int64),
        *(torch.zeros(n, dtype=torch.int32) for n in (5, 4)),
    )
    tape = native.Tape(native.Scratch(len(q)))
    with tape.recording():
        plan = attention.make_plan(starts, lengths, 6, 2, 16, None)
        layers = [attention.attend(q, cache, tables, plan, cases[0].scale) for _ in range(2)]
    assert len(tape) == 5 and layers[0].data_ptr() == layers[1].data_ptr()
    del plan
    gc.collect()
    for threads in (1, 2, 4):
        for case in cases:
            q.copy_(case.q), starts.copy_(case.batch.starts), lengths.copy_(case.batch.lengths)
            cache[: len(case.cache)] = case.cache
            tables[:, : case.batch.block_tables.shape[1]] = case.batch.block_tables
            with_threads(threads, lambda: tape.run() or layers[1])
            assert torch.equal(layers[1], attend(case, case.cache.to(cache.dtype)))


def test_what_cannot_be_recorded_or_planned_is_refused() -> None:
    case = Case([(40, 1), (20, 20)], 4, 2, 16, 16, None, seed=3)
    batch = case.batch
    plan = attention.make_plan(batch.starts, batch.lengths, 4, 2, 16, None)
    with pytest.raises(ValueError, match=r"for 2 requests and heads \(4, 2, 16\), not for 1"):
        attention.attend(case.q, case.cache, batch.block_tables[:1], plan, 1.0)
    with pytest.raises(ValueError, match=r"query_start is torch\.int64"):
        attention.make_plan(batch.starts.long(), batch.lengths, 4, 2, 16, None)
    apart = case.q.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="side by side"), native.Tape(native.Scratch(99)).recording():
        attention.attend(apart, case.cache, batch.block_tables, plan, 1.0)


def test_what_it_cannot_compute_is_refused_by_name() -> None:
    case = Case([(4, 1)], 2, 1, 12, 4, None, seed=0)
    with pytest.raises(ValueError, match="head_dim=12"):
        attend(case, case.cache)
    with pytest.raises(ValueError, match="bfloat16"):
        attend(random_case(1), random_case(1).cache.bfloat16())


def test_auto_takes_it_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cpu" in kernels.available("paged_attention")
    case = Case([(40, 1)], 4, 2, 16, 16, None, seed=3)
    assert attention.suits(case.q, case.cache) and not attention.suits(case.q.half(), case.cache)
