"""The C++ kernel against attention written out in float64, in both builds and with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import kernels
from kernels.cpu import attention, build, native
from tests.attention.paged_batches import Case, random_case


@pytest.fixture(params=build.BUILDS, autouse=True)
def one_build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", request.param)
    for cached in (build._library, native.function):
        cached.cache_clear()
    yield
    for cached in (build._library, native.function):
        cached.cache_clear()


def attend(case: Case, cache: torch.Tensor) -> torch.Tensor:
    return case.attend("cpu", cache)


@pytest.mark.parametrize("block_size", [1, 16, 17, 256])
@pytest.mark.parametrize("seed", range(15))
def test_equals_dense_attention(seed: int, block_size: int) -> None:
    case = random_case(5000 + seed, block_size)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (8, 2), (7, 1), (8, 1), (32, 1), (5, 5)])
@pytest.mark.parametrize("head_dim", [8, 40, 64, 128])
def test_groups_and_widths(heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case([(70, 1), (65, 65), (130, 6)], heads, kv_heads, head_dim, 16, None, seed=heads)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 1025, 2000])
@pytest.mark.parametrize("window", [None, 600])
def test_contexts_cut_into_stretches(length: int, window: int | None) -> None:
    case = Case([(length, 1), (3, 1)], 4, 2, 16, 16, window, seed=length)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_neither_threads_nor_neighbours_change_a_bit() -> None:
    case = Case([(1200, 1), (64, 64), (33, 1), (900, 9)], 6, 2, 16, 16, None, seed=1)
    before = torch.get_num_threads()
    try:
        outputs = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            outputs.append(attend(case, case.cache))
    finally:
        torch.set_num_threads(before)
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


def test_what_it_cannot_compute_is_refused_by_name() -> None:
    case = Case([(4, 1)], 2, 1, 12, 4, None, seed=0)
    with pytest.raises(ValueError, match="head_dim=12"):
        attend(case, case.cache)
    with pytest.raises(ValueError, match="bfloat16"):
        attend(random_case(1), random_case(1).cache.bfloat16())


def test_auto_takes_it_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.available("paged_attention") == ["reference", "cpu"]
    case = Case([(40, 1)], 4, 2, 16, 16, None, seed=3)
    assert attention.suits(case.q, case.cache) and not attention.suits(case.q.half(), case.cache)
