"""Every backend against the specification, on random mixes of decodes, prompts and chunks."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.cpu import build
from tests.attention.paged_batches import Case, random_case
from workbench.attention import sdpa
from workbench.attention.interface import Heads
from workbench.attention.registry import BACKENDS, attention_backend
from workbench.attention.table import CANDIDATES
from workbench.errors import UsageError

HEADS = Heads(9, 3, 64, torch.float32, torch.device("cpu"), torch.float32)


# What runs in an interpreter has fewer cases, in test_triton_backend.py.
@pytest.fixture(params=[name for name in BACKENDS if name != "triton"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def attend(name: str, case: Case, cache: torch.Tensor) -> torch.Tensor:
    backend = attention_backend(name, case.heads)
    return backend.attend(case.q, cache, backend.prepare(case.batch, case.window, cache.dtype), case.scale)


@pytest.mark.parametrize("seed", range(60))
def test_backends_equal_the_specification(name: str, seed: int) -> None:
    case = random_case(1000 + seed)
    torch.testing.assert_close(attend(name, case, case.cache), case.attend("reference"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_no_request_wrote_is_never_read(name: str, seed: int, value: float) -> None:
    """Free blocks and the unwritten tails of used ones hold poison, and not one bit changes."""
    case = random_case(2000 + seed)
    assert torch.equal(attend(name, case, case.poisoned(value)), attend(name, case, case.cache))


def test_poison_is_noticed_where_it_is_read(name: str) -> None:
    case = random_case(2000)
    case.cache[case.tables[0][0], 0] = float("nan")
    case.window = None
    assert attend(name, case, case.cache).isnan().any()


def test_many_decodes_of_very_different_lengths(name: str) -> None:
    """Long and short contexts land in several groups; each row must still find its own place in the output."""
    lengths = [300, 1, 64, 65, 7, 299, 130, 2, 500, 31]
    case = Case([(length, 1) for length in lengths], 9, 3, 16, 16, None, seed=5)
    if name == "sdpa":
        assert len(sdpa.Sdpa().prepare(case.batch, None, torch.float32).decodes) > 1
    torch.testing.assert_close(attend(name, case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [4, 5, 6, 40])
def test_prompts_around_the_window(name: str, length: int) -> None:
    case = Case([(length, length), (length, 1), (length, 2)], 4, 2, 8, 4, 5, seed=length)
    torch.testing.assert_close(attend(name, case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """Alone or among others, up to rounding: another grouping may sum in another order."""
    together = Case([(20, 1), (90, 1), (33, 33), (50, 8)], 4, 2, 8, 16, None, seed=3)
    out = attend(name, together, together.cache)
    for b, request in enumerate(together.requests):
        alone = Case([request], 4, 2, 8, 16, None, seed=0)
        begin, end = together.batch.query_start[b], together.batch.query_start[b + 1]
        alone.q, alone.keys, alone.values = together.q[begin:end], [together.keys[b]], [together.values[b]]
        torch.testing.assert_close(out[begin:end], alone.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [one.name for one in CANDIDATES.values() if one.batch_invariant])
def test_who_is_called_batch_invariant_gives_the_same_bits_alone(name: str) -> None:
    """The same cache; the long context is cut into stretches and the chunk into tiles."""
    together = Case([(20, 1), (700, 1), (33, 33), (50, 8)], 4, 2, 16, 16, None, seed=3)
    out = attend(name, together, together.cache)
    for b, request in enumerate(together.requests):
        begin, end = together.batch.query_start[b], together.batch.query_start[b + 1]
        alone = Case([request], 4, 2, 16, 16, None, seed=0)
        alone.q, alone.batch.block_tables = together.q[begin:end], together.batch.block_tables[b : b + 1]
        assert torch.equal(attend(name, alone, together.cache), out[begin:end])


def test_names() -> None:
    assert attention_backend("auto", HEADS).name == "cpu"
    assert {name: attention_backend(name, HEADS).name for name in BACKENDS} == {name: name for name in BACKENDS}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 12}, "head_dim=12"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
        ({"device": torch.device("cuda")}, "cuda"),
    ],
)
def test_auto_takes_sdpa_where_the_kernel_does_not_serve_and_the_name_is_refused(change: dict, reason: str) -> None:
    heads = HEADS._replace(**change)
    assert attention_backend("auto", heads).name == "sdpa"
    with pytest.raises(UsageError, match=reason):
        attention_backend("cpu", heads)


def test_without_a_compiler_sdpa_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    build._library.cache_clear()
    try:
        assert attention_backend("auto", HEADS).name == "sdpa"
        assert "cpu" not in kernels.available("paged_attention")
        with pytest.raises(UsageError, match="WORKBENCH_CPU_KERNELS=none"):
            attention_backend("cpu", HEADS)
    finally:
        build._library.cache_clear()


def test_sdpa_groups_are_small_on_a_cpu_and_alike_everywhere() -> None:
    """What a group gathers stays under the limit, however many requests there are; nobody is lost or counted twice."""
    seen = dict(enumerate([5, 900, 40, 41, 300, 310, 320, 5000, 60, 61, 62, 63]))
    order = sorted(seen, key=lambda b: seen[b])
    for most in (None, 1000, 200):
        groups = sdpa._groups(order, seen, most)
        assert [b for group in groups for b in group] == order
        for group in groups:
            longest, shortest = max(seen[b] for b in group), min(seen[b] for b in group)
            assert longest <= max(sdpa.MAX_PADDING * shortest, shortest + sdpa.MIN_PADDING)
            assert most is None or len(group) == 1 or len(group) * longest <= most
    assert len(sdpa._groups(order, seen, None)) < len(sdpa._groups(order, seen, 200))
