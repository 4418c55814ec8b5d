"""RMSNorm, RoPE with the cache write, SiLU · mul: every maker against the definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernels
from kernels import reference
from kernels.triton import activation, matmul, norm, rope, sampling, softmax
from kernels.triton.interpreter import interpreting
from tests.kernels.triton.grids import NotedGrids
from tests.kernels.triton.rules import agrees, amid_nan, drawn

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def makers(dtype: torch.dtype, device: str) -> list[str]:
    """Who can be asked about tensors of this kind."""
    cpu = device == "cpu" and dtype == F32 and "cpu" in kernels.available("rms_norm")
    return ["triton", *(["cpu"] if cpu else [])]


@pytest.mark.gpu_quick
@pytest.mark.parametrize(
    ("shape", "dtype", "with_residual"),
    [
        ((1, 1), F32, False),
        ((3, 7), F32, True),
        ((33, 64), BF16, True),
        ((5, 576), BF16, False),
        ((2, 3, 96), F16, True),
        ((2, 1100), F32, True),
        ((2, 4096), BF16, True),
        ((1, 5000), F16, False),
        ((0, 64), BF16, True),
    ],
)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, with_residual: bool, device: str) -> None:
    x, weight = (3 * amid_nan(*shape, dtype=dtype)).to(device), drawn(shape[-1], seed=1, dtype=dtype).to(device)
    before = drawn(*shape, seed=2, dtype=dtype).to(device) if with_residual else None
    same_stream = None if before is None else before.clone()
    same = reference.rms_norm(x, weight, 1e-3, same_stream)
    summed = (x if same_stream is None else same_stream).double()
    wide = summed / (summed.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    for maker in makers(dtype, device):
        stream = None if before is None else before.clone()
        found = kernels.rms_norm(x, weight, 1e-3, stream, maker=maker)
        agrees(found, same, wide)
        if stream is not None:
            assert torch.equal(stream, same_stream), "the stream is the definition's to the bit"
            again = kernels.rms_norm(stream, weight, 1e-3, maker=maker)
            assert torch.equal(found, again), "what is normalized is what the stream holds"


def test_rms_norm_of_rows_of_zeros_and_of_what_is_no_number(device: str) -> None:
    x = torch.zeros(4, 40, device=device)
    x[1, 3], x[2, 5] = float("nan"), 1e30
    found = kernels.rms_norm(x, torch.ones(40, device=device), 1e-6, maker="triton")
    assert (found[[0, 3]] == 0).all() and found[1].isnan().all() and not found[[0, 2, 3]].isnan().any()


def test_rms_norm_writes_the_stream_where_it_lies(device: str) -> None:
    """Rows of the stream a fixed distance apart, and nothing between them is touched."""
    storage = torch.full((5, 50), float("nan"), device=device)
    stream, x = storage[:, 4:44], drawn(5, 40).to(device)
    stream.copy_(drawn(5, 40, seed=1))
    expected = stream + x
    kernels.rms_norm(x, torch.ones(40, device=device), 1e-5, stream, maker="triton")
    assert torch.equal(stream, expected) and storage.isnan().sum() == 5 * 10


@pytest.mark.gpu_quick
@pytest.mark.parametrize(("rows", "width", "dtype"), [(1, 1, F32), (3, 20, BF16), (2, 1536, F16), (3, 1030, F32)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype, device: str) -> None:
    gate_up = (4 * amid_nan(rows, 2 * width, dtype=dtype)).to(device)
    gate, up = gate_up.double().chunk(2, -1)
    for maker in makers(dtype, device):
        given = gate_up if maker == "triton" else gate_up.contiguous()
        agrees(kernels.silu_mul(given, maker=maker), reference.silu_mul(gate_up), gate * gate.sigmoid() * up)
    assert kernels.silu_mul(gate_up[:0], maker="triton").shape == (0, width)


def test_silu_mul_far_from_zero(device: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -87.0, -1e-30, 0.0, 1e-30, 87.0, 200.0, 1e30]], device=device)
    gate_up = torch.cat((gate, torch.ones_like(gate)), 1)
    gate_up[0, 3] = float("nan")
    found = kernels.silu_mul(gate_up, maker="triton")
    torch.testing.assert_close(found, reference.silu_mul(gate_up), atol=1e-30, rtol=1e-5, equal_nan=True)


@pytest.mark.gpu_quick
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "normed", "dtype", "cached", "block_size"),
    [
        (9, 3, 64, False, F32, F32, 16),
        (1, 1, 2, True, F32, F16, 1),
        (7, 1, 24, True, F32, F32, 17),
        (5, 1, 80, False, BF16, BF16, 17),
        (8, 8, 96, True, F16, F16, 16),
        (32, 8, 128, True, BF16, BF16, 16),
        (4, 2, 256, False, BF16, F16, 3),
    ],
)
def test_rope_and_write(
    heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype, cached: torch.dtype, block_size: int,
    device: str,
) -> None:  # fmt: skip
    rows, blocks, angles = 5, 5, drawn(50, head_dim // 2, seed=1)
    positions, slots = torch.tensor([0, 49, 7, 7, 12]), torch.randperm(blocks * block_size)[:rows]
    slots = slots if len(slots) == rows else torch.arange(rows)
    tables = angles.cos().to(device), angles.sin().to(device)
    norms = [drawn(head_dim, seed=n, dtype=dtype).to(device) if normed else None for n in (4, 5)]
    places = positions.to(device), *tables, slots.to(device)
    cache = torch.full((blocks, block_size, 2, kv_heads, head_dim), float("nan"), dtype=cached, device=device)

    def made(by: str, kind: torch.dtype, stored: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        own = amid_nan(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype).to(device, kind)
        own = own.contiguous() if by == "cpu" else own
        written = cache.to(stored, copy=True)
        cos_sin = [table.to(torch.float64 if kind == torch.float64 else F32) for table in tables]
        weights = [None if one is None else one.to(kind) for one in norms]
        kernels.rope_and_write(own, places[0], *cos_sin, places[3], written, *weights, 1e-5, maker=by)
        return own, written

    wide, wide_cache = made("reference", torch.float64, torch.float64)
    same, same_cache = made("reference", dtype, cached)
    for name in makers(dtype, device):
        found, found_cache = made(name, dtype, cached)
        agrees(found, same, wide)
        written = ~found_cache.isnan()
        assert torch.equal(written, ~same_cache.isnan()), "its slots and no other"
        agrees(found_cache[written], same_cache[written], wide_cache[written])
        if cached is dtype:
            kv = found.view(rows, -1, head_dim)[:, heads:].unflatten(1, (2, kv_heads))
            assert torch.equal(found_cache.flatten(0, 1)[places[3]], kv), "what is cached is what attention sees"


@pytest.mark.gpu_quick
def test_a_slot_below_zero_is_not_written_but_its_token_is_turned(device: str) -> None:
    heads, kv_heads, head_dim = 2, 1, 8
    found = []
    for slots in ([5, -1, 0], [5, 3, 0]):
        qkv, cache = drawn(3, 32).to(device), torch.zeros(2, 4, 2, kv_heads, head_dim, device=device)
        angles = drawn(9, 4, seed=1).to(device)
        positions = torch.tensor([8, 3, 1], device=device)
        where = torch.tensor(slots, device=device)
        kernels.rope_and_write(qkv, positions, angles.cos(), angles.sin(), where, cache, maker="triton")
        found.append((qkv, cache.flatten(0, 1).flatten(1)))
    assert heads * head_dim == 16 and torch.equal(found[0][0], found[1][0])
    assert found[0][1].any(1).nonzero().flatten().tolist() == [0, 5]
    assert torch.equal(found[0][1][[0, 5]], found[1][1][[0, 5]])


def test_offsets_beyond_32_bits() -> None:
    """Rows and blocks over 2^31 numbers apart, in memory that is reserved and hardly touched."""
    if not interpreting():
        pytest.skip("it wants the interpreter's address checks")
    far = 2**30 + 16
    x = torch.empty(2 * far + 64, dtype=BF16).as_strided((3, 64), (far, 1)).copy_(drawn(3, 64, dtype=BF16))
    weight = drawn(64, seed=1, dtype=BF16)
    assert torch.equal(norm.rms_norm(x, weight, 1e-5), norm.rms_norm(x.contiguous(), weight, 1e-5))
    assert torch.equal(activation.silu_mul(x), activation.silu_mul(x.contiguous()))
    assert torch.equal(softmax.online(x), softmax.online(x.contiguous()))
    assert torch.equal(matmul.matmul(x, weight[:, None]), matmul.matmul(x.contiguous(), weight[:, None]))
    # Each number of a product that far from the next: within a block, and from block to block.
    deep = torch.empty(3 * far, dtype=BF16).as_strided((2, 130), (1, far // 60)).copy_(drawn(2, 130, dtype=BF16))
    near = deep.contiguous()
    assert torch.equal(matmul.matmul(deep, near.T), matmul.matmul(near, near.T))
    assert torch.equal(matmul.matmul(near, deep.T), matmul.matmul(near, near.T))
    options = ([0.7] * 3, [5] * 3, [0.9] * 3, [0.0] * 3, [0.5] * 3)
    assert torch.equal(sampling.sample(x, *options), sampling.sample(x.contiguous(), *options))
    cache = x.as_strided((3, 1, 2, 1, 32), (far, 64, 32, 32, 1)).zero_()
    tables, zeros = torch.ones(1, 16), torch.zeros(2, dtype=torch.int64)
    qkv = drawn(2, 96, dtype=BF16)
    rope.rope_and_write(qkv, zeros, tables, 0 * tables, torch.tensor([2, 0]), cache)
    assert torch.equal(cache[[2, 0]].flatten(1), qkv[:, 32:]) and not cache[1].any()


def test_tokens_stand_on_the_grid_s_first_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end at 65,535. Nothing is launched where there are no tokens."""
    noted = NotedGrids()
    for module, kernel in (
        (norm, "_rms_norm"), (activation, "_silu_mul"), (rope, "_rope_and_write"), (softmax, "_fused"),
        (softmax, "_online"), (matmul, "_matmul"), (sampling, "_sample"),
    ):  # fmt: skip
        monkeypatch.setattr(module, kernel, noted)
    monkeypatch.setattr("kernels.triton.launch.interpreted", lambda: True)
    for tokens in (70_000, 0):
        x = torch.empty(tokens, 32)
        norm.rms_norm(x, x.new_empty(32), 1e-5)
        activation.silu_mul(x), softmax.fused(x), softmax.online(x), matmul.matmul(x, torch.empty(32, 8))
        sampling.sample(x, *([[0.0] * tokens] * 5))
        places = torch.zeros(tokens, dtype=torch.int64)
        rope.rope_and_write(x, places, torch.empty(9, 4), torch.empty(9, 4), places, torch.empty(1, 1, 2, 1, 8))
        assert len(noted.grids) == 7 and all(max(grid[1:], default=1) < 65_536 for grid in noted.grids)


def test_what_cannot_be_taken_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.triton.launch.interpreted", lambda: True)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: norm.rms_norm(torch.ones(2, 4).double(), torch.ones(4), 1e-5), "x is torch.float64, and it takes"),
        (lambda: norm.rms_norm(torch.ones(4, 2).T, torch.ones(4), 1e-5), "the last numbers of x do not lie side by"),
        (lambda: norm.rms_norm(torch.ones(2, 4), torch.ones(3), 1e-5), "do not fit together"),
        (lambda: norm.rms_norm(torch.ones(1, 65537), torch.ones(65537), 1e-5), "rows of 65537 numbers, and it takes 1"),
        (
            lambda: norm.rms_norm(torch.ones(2, 2, 4), torch.ones(4), 1e-5, torch.ones(2, 3, 4)[:, :2]),
            "rows of the residual are not a fixed distance apart",
        ),
        (
            lambda: norm.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5, torch.ones(1, 4).expand(2, 4)),
            r"residual is written, and several of its numbers lie in one place \(strides \(0, 1\)\)",
        ),
        (lambda: _turn(qkv=torch.ones(1, 24).expand(2, 24)), "qkv is written, and several"),
        (lambda: _turn(cache=torch.ones(2, 1, 2, 1, 8).expand(2, 4, 2, 1, 8)), "cache is written, and several"),
        (lambda: activation.silu_mul(torch.ones(2, 3)), "rows of 3 numbers are no two halves"),
        (lambda: softmax.softmax(torch.ones(3, 2).T), "do not lie side by side"),
        (lambda: softmax.fused(torch.ones(1, 16385)), "rows of 16385, and they hold 16384; use online"),
        (lambda: _turn(table=torch.ones(9, 2)), r"no partial rotation"),
        (lambda: _turn(slots=torch.zeros(3, dtype=torch.int64)), r"slots is torch.int64 \[3\], and it takes 2 whole"),
        (lambda: _turn(norm=torch.ones(8)), "one of q_norm and k_norm without the other"),
    ]
    for call, reason in cases:
        with pytest.raises(ValueError, match=reason):
            call()


def _turn(
    table: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    qkv: torch.Tensor | None = None,
    cache: torch.Tensor | None = None,
) -> None:
    qkv = torch.ones(2, 24) if qkv is None else qkv
    cache = torch.zeros(2, 4, 2, 1, 8) if cache is None else cache
    table, places = torch.ones(9, 4) if table is None else table, torch.zeros(2, dtype=torch.int64)
    slots = places if slots is None else slots
    rope.rope_and_write(qkv, places, table, table, slots, cache, norm)
