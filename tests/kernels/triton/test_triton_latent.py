"""Attention over latents in Triton: a pairwise cover against the definition, then what it promises; numbers in brackets
are those of the bugs that users of such kernels met."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kernels
from kernels.reference import absorb, lift
from kernels.triton import latent_attention as module
from kernels.triton import latent_call
from kernels.triton.interpreter import OutOfBounds, interpreting
from kernels.triton.latent_attention import attend_latents
from kernels.triton.latent_call import plan_for
from kernels.triton.paged_plan import bounds_for
from tests.kernels.pairwise import cover
from tests.kernels.triton.grids import NotedGrids
from tests.kernels.triton.latent_cases import NAN, Latents
from tests.kernels.triton.paged_cases import GARBAGE, SPLITS
from tests.kernels.triton.rules import drawn

pytestmark = pytest.mark.usefixtures("no_clean_memory")

WAYS = ("one", "even", "fixed")
LENGTHS = {
    "decode": [(1, 1), (1, 17), (1, 300)],
    "empty": [(0, 5), (1, 0), (1, 130), (0, 0), (2, 2)],  # [4]
    "mixed": [(1, 90), (33, 80), (2, 150), (9, 9)],
    "more queries than keys": [(7, 3), (1, 1), (19, 16)],  # [1, 3]
}
FACTORS: dict[str, list[Any]] = {
    "lengths": list(LENGTHS),
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "widths": [(32, 8), (96, 16), (512, 64)],  # [9]
    "heads": [1, 3, 20],  # [11]
    "page": [1, 16, 17],  # [10]
    "layout": ["plain", "slice"],  # [12]
    "splits": list(SPLITS),
    "on_device": [False, True],
    "table_dtype": [torch.int64, torch.int32],
}


@pytest.mark.parametrize("case", cover(FACTORS), ids=lambda case: "-".join(map(str, case.values())))
def test_it_equals_the_definition(case: dict[str, Any], device: str) -> None:
    given = dict(case)
    lengths, splits, on_device, (rank, rope) = (given.pop(x) for x in ("lengths", "splits", "on_device", "widths"))
    made = Latents(LENGTHS[lengths], rank=rank, rope=rope, device=device, **given)
    made.check(*made.run(splits, on_device))


def test_poison_is_noticed_where_it_is_read(device: str) -> None:
    """The last token's, so that silence elsewhere means that nothing was read."""
    case = Latents([(1, 200)], device=device)
    case.cache[case.used[0][12], 7] = NAN
    assert all(case.run(splits)[0].isnan().all() for splits in WAYS)


@pytest.mark.skipif(not interpreting(), reason="the checker lives in the interpreter")
@pytest.mark.parametrize(("queries", "table_dtype"), [(1, torch.int32), (20, torch.int64)])
def test_page_numbers_do_not_wrap_at_32_bits(queries: int, table_dtype: torch.dtype) -> None:
    """[6] Page 2^22 of 1,024 elements lies 2^32 elements on; wrapped it would be page 0's and seem right."""
    case = Latents([(queries, 20)], rank=56, rope=8, table_dtype=table_dtype)
    case.cache.zero_()
    case.tables[0, 1] = 2**22
    with pytest.raises(Exception) as caught:
        case.run()
    found: BaseException | None = caught.value
    while found is not None and not isinstance(found, OutOfBounds):
        found = found.__cause__
    assert found is not None and found.argument == "cache"
    assert found.index == 2**32  # of the rows that lie there the latents are read first


def test_everything_lies_on_grid_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """[7] y and z end at 65,535 programs; a grid of no program is not launched."""
    noted = NotedGrids()
    monkeypatch.setattr(module, "_latent", noted)
    monkeypatch.setattr(module, "merge_splits", lambda *_, **__: None)
    cache = torch.empty(1, 16, 24).expand(5, 16, 24)
    for counts in ([], [0] * 3, [1] * 70_000, [5_000_000]):
        q = torch.empty(1, 4, 24).expand(sum(counts), 4, 24)
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()] if counts else [0]
        tables = torch.zeros(1, 5, dtype=torch.int64).expand(len(counts), 5)
        plan = plan_for(q, cache, tables, starts, [80] * len(counts), rank=16, split_size=64)
        attend_latents(q, cache, tables, plan, rank=16, scale=1.0)
    assert noted.grids == [(140_000, 1), (5_000_000 * 4 // 64 + 1, 1)]


@pytest.mark.gpu_quick
def test_fixed_splits_give_the_same_bits_alone_and_in_any_batch(device: str) -> None:
    """[25] Whatever else is there: longer requests, which have more splits, chunks of prompts, empty ones."""
    lengths = [(1, 30), (1, 400), (2, 130), (40, 90), (0, 7), (1, 64)]
    case = Latents(lengths, dtype=torch.float16, device=device)
    out, lse = case.run("fixed")
    again = case.run("fixed", on_device=True)
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    for b, length in enumerate(lengths):
        rows = slice(case.starts[b], case.starts[b + 1])
        alone = Latents([length], dtype=torch.float16, device=device)
        alone.q, alone.cache, alone.tables = case.q[rows], case.cache, case.tables[b : b + 1]
        mine = alone.run("fixed")
        assert torch.equal(mine[0], out[rows]) and torch.equal(mine[1], lse[rows])


def test_a_cache_of_another_type(device: str) -> None:
    """Queries in float32, latents stored in 16 bits."""
    for cache_dtype in (torch.float16, torch.bfloat16):
        case = Latents([(1, 70), (20, 30)], cache_dtype=cache_dtype, device=device)
        case.check(*case.run("fixed"))


@pytest.mark.gpu_quick
@pytest.mark.parametrize(("heads", "rank", "dtype"), [(128, 32, torch.float32), (20, 512, torch.bfloat16)])
def test_more_heads_than_a_small_tile_has_rows(heads: int, rank: int, dtype: torch.dtype, device: str) -> None:
    """The 128 of DeepSeek-V2 and V3 are two tiles of one query; of its latents of 512 a program has one half."""
    case = Latents([(1, 100), (3, 30)], heads=heads, rank=rank, dtype=dtype, device=device)
    for splits in WAYS:
        case.check(*case.run(splits))


def test_the_splits_that_are_tested_are_more_than_one(device: str) -> None:
    case = Latents([(1, 300)], device=device)
    for name, several in (("one", False), ("even", True), ("fixed", True), ("fixed, longer", True)):
        plan = plan_for(case.q, case.cache, case.tables, case.starts, case.keys, rank=32, **SPLITS[name])
        assert (plan.num_splits > 1) is several


def test_halves_fill_a_chip_too() -> None:
    """128 heads are two tiles of 64; where each has two programs, one wave of 132 holds half as many splits."""
    starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [32768]))
    for rank, programs in ((512, 4), (256, 2)):
        heads = latent_call.Latents(128, 1, rank, torch.bfloat16, torch.device("cpu"))
        splits = heads.plan(starts, lengths, bounds_for(1, 32768, 128), num_sms=132).num_splits
        assert 0.85 * 132 <= programs * splits <= 132


@pytest.mark.gpu_quick
def test_both_ways_by_the_front_are_those_of_the_definition(device: str) -> None:
    """Absorbed and lifted, and expanded, by the maker ``triton``; values narrower and wider than keys."""
    case = Latents([(1, 40), (5, 30), (9, 9), (0, 4), (2, 0)], device=device)
    case.tables[case.tables == GARBAGE] = 0
    for nope, value in ((12, 10), (12, 27)):
        key_up, value_up = (drawn(4, x, 32, seed=x).to(device) * 32**-0.5 for x in (nope, value))
        q = drawn(case.starts[-1], 4, nope + 8, seed=3).to(device)
        paged = (case.cache, case.tables, case.starts, case.keys)
        right = reference_of(q, *paged, key_up, value_up)
        absorbed = kernels.paged_latent_attention(absorb(q, key_up), *paged, rank=32, scale=0.3, maker="triton")
        expanded = kernels.expanded_latent_attention(q, *paged, key_up, value_up, scale=0.3, maker="triton")
        for found in (lift(absorbed, value_up), expanded):
            torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-4)


def reference_of(q: torch.Tensor, *others: Any) -> torch.Tensor:
    return kernels.expanded_latent_attention(q, *others, scale=0.3, maker="reference")


REFUSED = [
    ({"scale": 0.0}, "scale=0.0"),
    ({"split_size": 40}, "split_size=40 must be a positive multiple of the block of 64"),
    ({"q": torch.zeros(3, 4, 16)}, r"q \[3, 4, 16\], cache \[2, 16, 24\]"),
    ({"q": torch.zeros(3, 4, 24, dtype=torch.float64)}, "float64"),
    ({"q": torch.zeros(3, 24, 4).transpose(1, 2)}, "last numbers of q"),
    ({"cache": torch.zeros(2, 16, 24, dtype=torch.float8_e4m3fn)}, "cache is torch.float8_e4m3fn"),
    ({"rank": 24}, "a latent of 24 and a rotated key of 0"),
    ({"tables": torch.zeros(2, 2)}, "block_tables must be int64 or int32"),
    ({"tables": torch.zeros(3, 2, dtype=torch.int64)}, "the plan is for 2 requests"),
    ({"starts": torch.tensor([0, 1, 3])}, "query_start is torch.int64"),
    ({"starts": [0, 1, 3]}, "both lists or both int32 tensors"),
    ({"lse": torch.zeros(4, 3).T}, "lse must be contiguous float32"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    usual = {
        "q": torch.zeros(3, 4, 24),
        "cache": torch.zeros(2, 16, 24),
        "tables": torch.zeros(2, 2, dtype=torch.int64),
        "starts": torch.tensor([0, 1, 3], dtype=torch.int32),
        "lengths": torch.tensor([9, 9], dtype=torch.int32),
        **{"rank": 16, "split_size": None, "scale": 1.0},
    }
    given = usual | change
    tensors = [given.pop(name) for name in ("q", "cache", "tables")]
    lengths = [given.pop(name) for name in ("starts", "lengths")]
    split_size = given.pop("split_size")
    with pytest.raises(ValueError, match=message):
        plan = plan_for(*tensors, *lengths, rank=given["rank"], split_size=split_size)
        attend_latents(*tensors, plan, **given)
