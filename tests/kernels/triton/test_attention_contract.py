"""What attention promises beside its numbers, one test a promise; in brackets the bug that users met without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels.triton.flash_attention import flash_attention
from kernels.triton.flash_tiles import Tiles
from kernels.triton.interpreter import OutOfBounds, interpreting
from tests.kernels.triton.attention_cases import NAN, RUNGS, Case
from tests.kernels.triton.grids import NotedGrids

SMALL = Tiles(32, 16, 4, 1)
interpreted_only = pytest.mark.skipif(not interpreting(), reason="the checker lives in the interpreter")


@pytest.fixture(params=[*RUNGS, "descriptors"])
def rung(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["flash", "descriptors"])
def flash(request: pytest.FixtureRequest) -> str:
    """How the last rung reads keys and values."""
    return request.param


def run(case: Case, rung: str, config: Tiles = SMALL) -> tuple[torch.Tensor, torch.Tensor]:
    if rung == "descriptors":
        return case.run("flash", config=config, descriptors=True)
    return case.run(rung, config=config)


def test_a_window_hides_the_first_blocks_of_later_rows(rung: str, device: str) -> None:
    """[1] In a tile some rows have seen nothing after several blocks: −inf − −inf must not arise."""
    case = Case([(70, 70)], 16, 1, window=3, device=device)
    case.check(*run(case, rung, Tiles(64, 16, 4, 1)))


@pytest.mark.gpu_quick
@pytest.mark.parametrize("poison", [NAN, float("inf")])
def test_keys_that_no_query_sees_are_not_read(rung: str, poison: float, device: str) -> None:
    """[2] Garbage before the window, as in blocks given up by a sliding window, and in a neighbour changes no bit."""
    case = Case([(3, 50), (4, 9), (2, 37)], 24, 2, window=5, device=device)
    expected = run(case, rung)
    for x in case.inputs[1:3]:
        x[: 50 - 3 - 5 + 1] = poison
        x[50:59] = poison
        x[59 : 59 + 37 - 2 - 5 + 1] = poison
    for was, now in zip(expected, run(case, rung), strict=True):
        assert torch.equal(now[:3], was[:3]) and torch.equal(now[7:], was[7:])
        assert not now[3:7].isfinite().all()


@pytest.mark.gpu_quick
@pytest.mark.parametrize("sinks", [False, True])
def test_no_keys(rung: str, sinks: bool, device: str) -> None:
    """[3, 4] Out 0 and lse −inf (or the sink); rows between others are written, not left as memory was."""
    case = Case([(2, 0), (1, 4), (5, 2)], 16, 3, sinks=sinks, device=device)
    out, lse = run(case, rung)
    for rows in (slice(0, 2), slice(3, 6)):
        assert not out[rows].any()
        nothing = torch.full_like(lse[rows], float("-inf")) if case.sink is None else case.sink.expand(lse[rows].shape)
        torch.testing.assert_close(lse[rows], nothing)
    case.check(out, lse)


def test_a_softcap_does_not_overflow(flash: str, device: str) -> None:
    """[5] Scores of thousands: e^x would be infinite, the capped score is the cap."""
    case = Case([(5, 40)], 64, 2, softcap=2.0, spread=3000.0, device=device)
    out, lse = run(case, flash)
    case.check(out, lse)
    assert lse.abs().max() < 2 + 4


def test_scores_far_apart(flash: str, device: str) -> None:
    """Without a cap the highest score takes all; the others vanish without a NaN."""
    case = Case([(5, 40)], 64, 2, spread=3000.0, device=device)
    case.check(*run(case, flash))


@interpreted_only
@pytest.mark.parametrize("argument", ["k", "v"])
def test_offsets_do_not_wrap_at_32_bits(argument: str) -> None:
    """[6] Token 2^26 of width 64 lies 2^32 elements on. Wrapped to 32 bits the address would be the first token's, and
    nothing would seem wrong; so the checker must be asked for the true one."""
    far = 2**26
    q, k, v = (torch.zeros(4, 1, 64) for _ in range(3))
    if argument == "v":
        k = k[:1].expand(4, 1, 64)  # one token stands for all, wherever they lie
    near, away = (torch.tensor([first, first + 4], dtype=torch.int32) for first in (0, far))
    with pytest.raises(Exception) as caught:
        flash_attention(q, k, v, near, away, scale=1.0, causal=False, config=SMALL)
    found: BaseException | None = caught.value
    while found is not None and not isinstance(found, OutOfBounds):
        found = found.__cause__
    assert found is not None and (found.argument, found.index) == (argument, far * 64)


@pytest.mark.parametrize("wide", ["token", "head"])
def test_strides_beyond_32_bits(flash: str, wide: str, device: str) -> None:
    """[6] Tokens (or heads) so far apart that the third lies 2^32 elements on. Only the pages touched exist."""
    stride = 2**31
    shape, strides = ((3, 2, 16), (stride, 16, 1)) if wide == "token" else ((3, 3, 16), (16, stride, 1))
    case = Case([(3, 3)], 16, 1, kv_heads=shape[1], device=device)
    sparse = []
    for x in case.inputs[:3]:
        room = torch.empty(2 * stride + 64, dtype=torch.float16, device=device).as_strided(shape, strides)
        sparse.append(room.copy_(x))
    case.dtype = torch.float16
    case.inputs = (*sparse, *case.inputs[3:])
    case.check(*run(case, flash))


def test_tokens_lie_on_grid_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """[7] y and z end at 65,535 programs; and a grid of no program is not launched."""
    noted = NotedGrids()
    monkeypatch.setattr("kernels.triton.flash_attention._flash", noted)
    for tokens in (0, 70_000 * SMALL.block_m):
        x = torch.empty(1, 2, 16).expand(tokens, 2, 16)
        boundaries = torch.tensor([0, tokens], dtype=torch.int32)
        flash_attention(x, x, x, boundaries, boundaries, scale=1.0, config=SMALL, descriptors=False)
    assert noted.grids == [(70_001, 2)]


def test_no_queries_and_no_sequences(rung: str, device: str) -> None:
    """[4, 7] Nothing to do is done without a launch."""
    case = Case([(0, 9), (0, 0)], 16, 2, device=device)
    out, lse = run(case, rung)
    assert out.shape == (0, 2, 16) and lse.shape == (0, 2)
    _, k, v, boundaries, _ = case.inputs
    case.inputs = (torch.zeros(3, 2, 16, device=device), k, v, boundaries[:1], boundaries[:1])
    assert run(case, rung)[0].shape == (3, 2, 16)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_counts_once_in_a_split(causal: bool, device: str) -> None:
    """[8] Two halves of the keys, the sinks in one of them, merged: as over all keys at once."""
    case = Case([(2, 40)], 24, 3, causal=causal, sinks=True, device=device)
    q, k, v, queries, _ = case.inputs
    ends = [torch.tensor([0, n], dtype=torch.int32, device=device) for n in (25, 15)]
    scale = case.options["scale"]
    head = flash_attention(q, k[:25], v[:25], queries, ends[0], scale=scale, causal=False, config=SMALL)
    tail = flash_attention(
        q, k[25:], v[25:], queries, ends[1], scale=scale, causal=causal, sinks=case.sink, config=SMALL
    )
    case.check(*kernels.merge_states(*head, *tail, maker="triton"))
    twice = flash_attention(q, k[:25], v[:25], queries, ends[0], scale=scale, causal=False, sinks=case.sink)
    with pytest.raises(AssertionError):
        case.check(*kernels.merge_states(*twice, *tail, maker="triton"))


@pytest.mark.parametrize("group", [5, 17, 40])
def test_groups_that_are_no_power_of_two(group: int, flash: str, device: str) -> None:
    """[11] Also more heads in a group than a tile has rows."""
    case = Case([(3, 20), (2, 2)], 16, group, device=device)
    case.check(*run(case, flash))


def test_causal_is_aligned_at_the_end(flash: str, device: str) -> None:
    """Query i of m sees keys up to n − m + i: the first of three queries over five keys sees three."""
    case = Case([(3, 5)], 16, device=device)
    before, _ = run(case, flash)
    for key, seeing in ((2, [0, 1, 2]), (3, [1, 2]), (4, [2])):
        values = case.inputs[2]
        values[key] += 1.0
        after, _ = run(case, flash)
        assert (after != before).flatten(1).any(1).nonzero().flatten().tolist() == seeing
        values[key] -= 1.0
        before, _ = run(case, flash)


@pytest.mark.gpu_quick
@pytest.mark.parametrize("window", [15, 16, 17])
def test_window_edges(window: int, flash: str, device: str) -> None:
    """A window around a block's length: the token at distance window − 1 is seen, the one at window is not."""
    case = Case([(1, 60)], 16, window=window, device=device)
    before, _ = run(case, flash)
    for distance, seen in ((window, False), (window - 1, True), (0, True)):
        values = case.inputs[2].clone()
        values[59 - distance] += 1.0
        case.inputs, kept = (*case.inputs[:2], values, *case.inputs[3:]), case.inputs
        assert torch.equal(run(case, flash)[0], before) is not seen
        case.inputs = kept


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**63, 10**30])
def test_a_window_of_any_width_hides_nothing(window: int, rung: str, device: str) -> None:
    """Also where more queries than keys put the first ones at positions below zero: no sum may wrap at 32 bits."""
    case = Case([(40, 7), (33, 3)], 16, 3, causal=False, device=device)
    expected = run(case, rung)
    case.window = window
    for was, now in zip(expected, run(case, rung), strict=True):
        assert torch.equal(now, was)


def test_same_bits_twice_alone_and_in_chunks(device: str) -> None:
    """[25] A row's result depends neither on its neighbours nor on how its prompt was cut."""
    lengths = [(20, 20), (37, 90), (1, 33)]
    case = Case(lengths, 24, 3, dtype=torch.float16, window=40, device=device)
    for x in case.inputs[:3]:
        x.round_()  # scores are then exact: numpy's product, unlike a GPU's, adds a row up by where it stands
    out, lse = run(case, "flash")
    again = run(case, "flash")
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    q, k, v, queries, keys = case.inputs
    for b, (m, n) in enumerate(lengths):
        rows, columns = slice(queries[b], queries[b + 1]), slice(keys[b], keys[b + 1])
        for cut in (m, (m + 1) // 2):  # alone and whole; alone in two chunks
            for first, last in ((0, cut), (cut, m)):
                own = q[rows][first:last], k[columns][: n - m + last], v[columns][: n - m + last]
                ends = [torch.tensor([0, len(x)], dtype=torch.int32, device=device) for x in own[:2]]
                chunk = flash_attention(*own, *ends, **case.options, config=SMALL)
                assert torch.equal(chunk[0], out[rows][first:last]) and torch.equal(chunk[1], lse[rows][first:last])


def test_rows_past_the_last_boundary_are_nobodys(rung: str, device: str) -> None:
    """Padding at the end of the batch is neither read nor written."""
    case = Case([(3, 5), (2, 9)], 16, 2, device=device)
    expected = run(case, rung)
    padded = [torch.cat([x, torch.full_like(x[:3], NAN)]) for x in case.inputs[:3]]
    case.inputs = (*padded, *case.inputs[3:])
    for was, now in zip(expected, run(case, rung), strict=True):
        assert torch.equal(now[:5], was)


def test_the_cpu_kernel_agrees() -> None:
    """The same keys and values as pages of 16 tokens."""
    if not interpreting():
        pytest.skip("the C++ kernel is compared where Triton is interpreted")
    case = Case([(9, 40), (1, 17), (20, 20)], 64, 3, kv_heads=2, window=12)
    q, k, v, queries, keys = case.inputs
    blocks = [-(-n // 16) for _, n in case.lengths]
    cache = torch.full((sum(blocks), 16, 2, 2, 64), NAN)
    tables = torch.zeros(3, max(blocks), dtype=torch.int64)
    for b, (_, n) in enumerate(case.lengths):
        own = torch.arange(sum(blocks[:b]), sum(blocks[: b + 1]))
        tables[b, : blocks[b]] = own
        rows = slice(keys[b], keys[b + 1])
        cache.view(-1, 2, 2, 64)[int(own[0]) * 16 :][:n] = torch.stack([k[rows], v[rows]], 1)
    makers = [maker for maker in kernels.available("paged_attention") if maker in ("reference", "cpu")]
    out, _ = run(case, "flash")
    for maker in makers:
        paged = kernels.paged_attention(
            q.contiguous(), cache, tables, queries.tolist(), [n for _, n in case.lengths],
            scale=case.options["scale"], window=12, maker=maker,
        )  # fmt: skip
        torch.testing.assert_close(out, paged, atol=2e-6, rtol=2e-5)


REFUSED = [
    ({"scale": 0.0}, "scale=0.0"),
    ({"scale": NAN}, "scale=nan"),
    ({"window": 0}, "window=0"),
    ({"softcap": -1.0}, "softcap=-1.0"),
    ({"sinks": torch.zeros(3)}, r"num_heads=4"),
    ({"q": torch.zeros(4, 16, 4).transpose(1, 2)}, "last numbers of q"),
    ({"q": torch.zeros(4, 3, 16)}, "num_kv_heads divide"),
    ({"q": torch.zeros(4, 64)}, "num_heads, head_dim"),
    ({"k": torch.zeros(4, 2, 16, dtype=torch.float16)}, "k is torch.float16"),
    ({"q": torch.zeros(4, 4, 16, dtype=torch.float64)}, "float64"),
    ({"q": torch.zeros(4, 4, 320), "k": torch.zeros(4, 2, 320), "v": torch.zeros(4, 2, 320)}, "head_dim=320"),
    ({"cu_seqlens_k": torch.tensor([0, 4])}, "cu_seqlens_k must be contiguous int32"),
    ({"cu_seqlens_k": torch.tensor([0, 2, 4], dtype=torch.int32)}, "cu_seqlens_k must be contiguous int32"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused(change: dict, message: str) -> None:
    q, k, ends = torch.zeros(4, 4, 16), torch.zeros(4, 2, 16), torch.tensor([0, 4], dtype=torch.int32)
    given = {"q": q, "k": k, "v": k, "cu_seqlens_q": ends, "cu_seqlens_k": ends, "scale": 1.0} | change
    for call in RUNGS.values():
        with pytest.raises(ValueError, match=message):
            call(**given)


def test_descriptors_are_refused_where_rows_begin_between_16_bytes() -> None:
    x, ends = torch.zeros(4, 1, 20, dtype=torch.float16), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="16 bytes"):
        flash_attention(x, x, x, ends, ends, scale=1.0, descriptors=True)


def test_a_cpu_tensor_is_refused_unless_interpreting() -> None:
    program = (
        "import torch, kernels\n"
        "x, ends = torch.zeros(4, 1, 16), torch.tensor([0, 4], dtype=torch.int32)\n"
        "kernels.flash_attention(x, x, x, ends, ends, scale=1.0, maker='triton')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "TRITON_INTERPRET=1" in done.stderr.splitlines()[-1]
