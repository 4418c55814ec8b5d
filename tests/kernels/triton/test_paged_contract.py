"""What paged attention promises beside its numbers, one test a promise; in brackets the bug that users met."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels.triton import paged_attention as module
from kernels.triton.interpreter import OutOfBounds, interpreting
from kernels.triton.paged_attention import attend
from kernels.triton.paged_call import plan_for
from tests.kernels.triton.attention_cases import NAN
from tests.kernels.triton.grids import NotedGrids
from tests.kernels.triton.paged_cases import GARBAGE, SPLITS, Paged

pytestmark = pytest.mark.usefixtures("no_clean_memory")

interpreted_only = pytest.mark.skipif(not interpreting(), reason="the checker lives in the interpreter")


WAYS = ("one", "even", "fixed")


def test_a_split_that_one_row_of_a_tile_does_not_see(device: str) -> None:
    """[1] Queries 63 … 66 with a window of 2: the first sees nothing of the second split, the last nothing of the
    first."""
    case = Paged([(4, 67), (1, 64), (1, 65)], 16, 4, window=2, device=device)
    for splits in WAYS:
        case.check(*case.run(splits))


def test_pages_given_up_before_the_window_are_not_looked_up(device: str) -> None:
    """[2] Their entries of the block table are garbage and they hold NaN: not one bit changes."""
    case = Paged([(2, 200), (40, 150)], 16, 2, page=4, window=9, device=device)
    expected = [case.run(splits) for splits in WAYS]
    for b, (m, n) in enumerate(case.lengths):
        gone = (n - m - 9 + 1) // 4
        case.cache[case.used[b][:gone]] = NAN
        case.tables[b, :gone] = GARBAGE
    assert gone > 20
    for splits, (out, lse) in zip(WAYS, expected, strict=True):
        now = case.run(splits)
        assert torch.equal(now[0], out) and torch.equal(now[1], lse)


def test_poison_is_noticed_where_it_is_read(device: str) -> None:
    case = Paged([(1, 200)], 16, device=device)
    case.cache[case.used[0][12], 7] = NAN  # token 199, the last
    assert all(case.run(splits)[0].isnan().all() for splits in WAYS)


@pytest.mark.parametrize("sinks", [False, True])
def test_no_keys(sinks: bool, device: str) -> None:
    """[3, 4] Out 0 and lse −inf (or the sink), between requests of which one is long enough to be split."""
    case = Paged([(1, 0), (1, 400), (30, 2), (2, 0)], 16, 3, sinks=sinks, device=device)
    for splits in WAYS:
        out, lse = case.run(splits)
        for rows in (slice(0, 1), slice(2, 32), slice(32, 34)):
            assert not out[rows].any() or rows.start == 2
            nothing = torch.full_like(lse[:1], float("-inf")) if case.sink is None else case.sink[None]
            torch.testing.assert_close(lse[[0, 2, 29, 32, 33]], nothing.expand(5, -1))
        case.check(out, lse)


def test_a_softcap_does_not_overflow(device: str) -> None:
    """[5] Scores of thousands: e^x would be infinite, the capped score is the cap."""
    case = Paged([(1, 140), (20, 40)], 64, 2, dtype=torch.float16, softcap=2.0, spread=3000.0, device=device)
    for splits in WAYS:
        case.check(*case.run(splits))


@interpreted_only
@pytest.mark.parametrize(("queries", "table_dtype"), [(1, torch.int32), (20, torch.int64)])
def test_page_numbers_do_not_wrap_at_32_bits(queries: int, table_dtype: torch.dtype) -> None:
    """[6] Page 2^21 of 2,048 elements lies 2^32 elements on. Wrapped to 32 bits the address would be page 0's and
    nothing would seem wrong; so the checker must be asked for the true one."""
    case = Paged([(queries, 20)], 64, page=16, table_dtype=table_dtype)
    case.cache.zero_()
    case.tables[0, 1] = 2**21
    with pytest.raises(Exception) as caught:
        case.run()
    found: BaseException | None = caught.value
    while found is not None and not isinstance(found, OutOfBounds):
        found = found.__cause__
    assert found is not None and (found.argument, found.index) == ("k", 2**21 * 16 * 128)


def test_strides_beyond_32_bits(device: str) -> None:
    """[6] The third page lies 2^32 elements on. Only the pages touched exist."""
    stride = 2**31
    case = Paged([(1, 48)], 16, page=16, dtype=torch.float16, device=device)
    room = torch.empty(2 * stride + 1024, dtype=torch.float16, device=device)
    far = room.as_strided((3, 16, 2, 1, 16), (stride, 32, 16, 16, 1))
    case.cache = far.copy_(case.cache[case.used[0]])
    case.tables[0, :3] = torch.arange(3)
    case.check(*case.run())


def test_everything_lies_on_grid_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """[7] y and z end at 65,535 programs: requests, tiles and splits are on x; a grid of no program is not launched."""
    noted = NotedGrids()
    monkeypatch.setattr(module, "_paged", noted)
    monkeypatch.setattr(module, "merge_splits", lambda *_, **__: None)
    cache = torch.empty(1, 16, 2, 2, 16).expand(5, 16, 2, 2, 16)
    for counts in ([], [0] * 3, [1] * 70_000, [5_000_000]):
        q = torch.empty(1, 4, 16).expand(sum(counts), 4, 16)
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()] if counts else [0]
        tables = torch.zeros(1, 5, dtype=torch.int64).expand(len(counts), 5)
        plan = plan_for(q, cache, tables, starts, [80] * len(counts), split_size=64)
        attend(q, cache, tables, plan, scale=1.0)
    assert noted.grids == [(140_000, 2), (5_000_000 * 2 // 64 + 1, 2)]


def test_a_sink_counts_once_however_many_splits(device: str) -> None:
    """[8] Also where a window leaves out the first splits."""
    for window in (None, 70):
        case = Paged([(1, 400), (2, 270)], 24, 3, sinks=True, window=window, device=device)
        for splits in WAYS:
            case.check(*case.run(splits))


@pytest.mark.gpu_quick
def test_groups_that_are_no_power_of_two(device: str) -> None:
    """[11] Also more heads in a group than a tile has rows."""
    for group in (5, 17, 70):
        case = Paged([(3, 20), (1, 70), (25, 30)], 16, group, device=device)
        case.check(*case.run("fixed"))


def test_a_cache_of_another_type(device: str) -> None:
    """Queries in float32, keys and values stored in 16 bits."""
    for cache_dtype in (torch.float16, torch.bfloat16):
        case = Paged([(1, 70), (20, 30)], 32, 2, cache_dtype=cache_dtype, device=device)
        case.check(*case.run("fixed"))


@pytest.mark.gpu_quick
@pytest.mark.parametrize("window", [None, 90])
def test_fixed_splits_give_the_same_bits_alone_and_in_any_batch(window: int | None, device: str) -> None:
    """[25] Whatever else is there: longer requests, which have more splits, chunks of prompts, empty ones."""
    lengths = [(1, 30), (1, 400), (2, 130), (40, 90), (0, 7), (1, 64)]
    case = Paged(lengths, 24, 3, dtype=torch.float16, window=window, sinks=True, device=device)
    out, lse = case.run("fixed")
    again = case.run("fixed", on_device=True)
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    q, _, _, starts, _ = case.inputs
    for b, (_, n) in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        alone = Paged([lengths[b]], 24, 3, dtype=torch.float16, window=window, device=device)
        alone.inputs = (q[rows], *alone.inputs[1:])
        alone.sinks, alone.sink = True, case.sink
        alone.cache, alone.tables = case.cache, case.tables[b : b + 1, : -(-n // 16)]
        mine = alone.run("fixed")
        assert torch.equal(mine[0], out[rows]) and torch.equal(mine[1], lse[rows])


def test_even_splits_promise_no_bits(device: str) -> None:
    """What fixed splits are for: here a neighbour changes how a request is split, and with it the last bits."""
    case = Paged([(1, 400)], 24, 3, device=device)
    alone, _ = case.run("even")
    plan = plan_for(case.inputs[0], case.cache, case.tables, *case.lists, num_sms=3)
    other = attend(case.inputs[0], case.cache, case.tables, plan, scale=case.options["scale"])
    torch.testing.assert_close(alone, other, atol=1e-6, rtol=1e-5)
    assert not torch.equal(alone, other)


def test_same_bits_twice(device: str) -> None:
    case = Paged([(1, 300), (30, 70)], 24, 3, dtype=torch.bfloat16, device=device)
    for splits in WAYS:
        first, second = case.run(splits), case.run(splits)
        assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_rows_of_nobody_are_neither_read_nor_written(device: str) -> None:
    """Padding at the end of the batch, as in a recorded step whose batch is smaller than its bucket."""
    case = Paged([(1, 300), (20, 70)], 24, 3, device=device)
    q = torch.cat([case.inputs[0], torch.full_like(case.inputs[0][:3], NAN)])
    expected = [case.run(splits) for splits in WAYS]
    case.inputs = (q, *case.inputs[1:])
    for splits, before in zip(WAYS, expected, strict=True):
        out = torch.full_like(q, 7.0)
        now, lse = case.run(splits, out=out)
        assert now is out and (out[21:] == 7).all() and lse[21:].isnan().all()
        assert torch.equal(out[:21], before[0]) and torch.equal(lse[:21], before[1])


@pytest.mark.parametrize("maker", ["reference", "cpu"])
def test_makers_agree(maker: str, device: str) -> None:
    """By the front, where tables must be valid to their end for none but Triton."""
    case = Paged([(1, 100), (20, 33)], 64, 3, kv_heads=2, window=40, device=device)
    case.tables[case.tables == GARBAGE] = 0
    starts, lengths = case.lists
    options = {"scale": case.options["scale"], "window": 40}
    if maker not in kernels.available("paged_attention"):
        pytest.skip("there is no compiler for the C++ kernel")
    given = case.inputs[0].contiguous(), case.cache, case.tables, starts, lengths
    expected = kernels.paged_attention(*given, **options, maker=maker)
    out = kernels.paged_attention(*given, **options, maker="triton")
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=2e-5)


REFUSED = [
    ({"scale": 0.0}, "scale=0.0"),
    ({"window": 0}, "window=0"),
    ({"split_size": 40}, "split_size=40 must be a positive multiple of the block of 64"),
    ({"softcap": -1.0}, "softcap=-1.0"),
    ({"sinks": torch.zeros(3)}, r"num_heads=4"),
    ({"q": torch.zeros(3, 3, 16)}, "num_kv_heads divide"),
    ({"q": torch.zeros(3, 0, 16)}, "num_kv_heads divide"),
    ({"q": torch.zeros(3, 4, 16, dtype=torch.float64)}, "float64"),
    ({"q": torch.zeros(3, 16, 4).transpose(1, 2)}, "last numbers of q"),
    ({"cache": torch.zeros(2, 16, 2, 2, 32)}, r"cache \[2, 16, 2, 2, 32\]"),
    ({"cache": torch.zeros(2, 16, 2, 2, 16, dtype=torch.float8_e4m3fn)}, "cache is torch.float8_e4m3fn"),
    ({"tables": torch.zeros(2, 2)}, "block_tables must be int64 or int32"),
    ({"tables": torch.zeros(3, 2, dtype=torch.int64)}, "the plan is for 2 requests"),
    ({"tables": torch.zeros(2, 2, dtype=torch.int64).T}, "side by side"),
    ({"starts": torch.tensor([0, 1, 3])}, "query_start is torch.int64"),
    ({"starts": [0, 1, 3]}, "both lists or both int32 tensors"),
    ({"lse": torch.zeros(4, 3).T}, "lse must be contiguous float32"),
    ({"out": torch.zeros(3, 4, 8)}, r"out is torch.float32 \[3, 4, 8\]"),
]


def test_what_is_refused() -> None:
    usual = {
        "q": torch.zeros(3, 4, 16),
        "cache": torch.zeros(2, 16, 2, 2, 16),
        "tables": torch.zeros(2, 2, dtype=torch.int64),
        "starts": torch.tensor([0, 1, 3], dtype=torch.int32),
        "lengths": torch.tensor([9, 9], dtype=torch.int32),
        **{"window": None, "split_size": None, "scale": 1.0},
    }
    for change, message in REFUSED:
        given = usual | change
        tensors = [given.pop(name) for name in ("q", "cache", "tables")]
        lengths = [given.pop(name) for name in ("starts", "lengths")]
        planned = {name: given.pop(name) for name in ("window", "split_size")}
        with pytest.raises(ValueError, match=message):
            attend(*tensors, plan_for(*tensors, *lengths, **planned), **given)


def test_a_cpu_tensor_is_refused_unless_interpreting() -> None:
    program = (
        "import torch, kernels\n"
        "q, cache, table = torch.zeros(1, 1, 16), torch.zeros(1, 4, 2, 1, 16), torch.zeros(1, 1, dtype=torch.int64)\n"
        "kernels.paged_attention(q, cache, table, [0, 1], [1], scale=1.0, maker='triton')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "TRITON_INTERPRET=1" in done.stderr.splitlines()[-1]


def test_the_splits_that_are_tested_are_more_than_one(device: str) -> None:
    """Of the lengths above, so that no test passes because nothing was split."""
    case = Paged([(1, 400)], 16, device=device)
    for name, several in (("one", False), ("even", True), ("fixed", True), ("fixed, longer", True)):
        plan = plan_for(case.inputs[0], case.cache, case.tables, *case.lists, **SPLITS[name])
        assert (plan.num_splits > 1) is several
