"""The small operations in C++ against their definitions in plain PyTorch, in both builds, eager and replayed."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import reference
from kernels.cpu import layers, native
from tests.kernels.builds import one_build  # noqa: F401
from tests.kernels.weight_formats import drawn

pytestmark = pytest.mark.usefixtures("one_build")


@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (3, 7), (40, 576), (1, 1), (0, 16), (300, 200)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(shape: tuple[int, int], with_residual: bool) -> None:
    x, weight = 3 * drawn(*shape), drawn(shape[1], seed=1)
    ours, theirs = ((drawn(*shape, seed=2) if with_residual else None) for _ in range(2))
    found = layers.rms_norm(x, weight, 1e-3, ours)
    torch.testing.assert_close(found, reference.rms_norm(x, weight, 1e-3, theirs))
    assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_rms_norm_of_rows_that_lie_apart() -> None:
    x, weight = drawn(6, 100)[:, 10:42], drawn(32, seed=1)
    assert torch.equal(layers.rms_norm(x, weight, 1e-5), layers.rms_norm(x.contiguous(), weight, 1e-5))


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("width", [1, 8, 20, 1536])
def test_silu_mul(rows: int, width: int) -> None:
    gate_up = 4 * drawn(rows, 2 * width)
    torch.testing.assert_close(layers.silu_mul(gate_up), reference.silu_mul(gate_up), atol=1e-6, rtol=2e-6)


def test_silu_mul_far_from_zero() -> None:
    """Neither end overflows, and what is not a number stays so."""
    gate = torch.tensor([[-1e30, -200.0, -88.0, -87.0, -1e-30, 0.0, 1e-30, 87.0, 200.0, 1e30]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), 1)
    torch.testing.assert_close(layers.silu_mul(gate_up), reference.silu_mul(gate_up), atol=1e-30, rtol=1e-5)
    gate_up[0, 3] = float("nan")
    assert layers.silu_mul(gate_up).isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (1, 1, 2), (4, 4, 8), (7, 1, 24), (8, 2, 128)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 13, 80])
def test_rope_and_write(heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype, rows: int) -> None:
    width = (heads + 2 * kv_heads) * head_dim
    angles = drawn(50, head_dim // 2, seed=1)
    positions = torch.randint(0, 50, (rows,), generator=torch.Generator().manual_seed(2))
    slots = torch.randperm(6 * 17, generator=torch.Generator().manual_seed(3))[:rows]
    norms = (drawn(head_dim, seed=4), drawn(head_dim, seed=5)) if normed else (None, None)
    found = []
    for made in (layers.rope_and_write, reference.rope_and_write):
        qkv, cache = drawn(rows, width), torch.full((6, 17, 2, kv_heads, head_dim), float("nan"), dtype=dtype)
        made(qkv, positions, angles.cos(), angles.sin(), slots, cache, *norms, 1e-5)
        found.append((qkv, cache))
    (ours, cache), (theirs, expected) = found
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(
        cache, expected, atol=1e-3 if dtype == torch.float16 else 2e-6, rtol=1e-3, equal_nan=True
    )
    assert cache.isnan().flatten(2).all(2).sum() == 6 * 17 - rows


def test_a_slot_below_zero_is_not_written() -> None:
    cache = torch.zeros(2, 4, 2, 1, 8)
    tables = torch.ones(1, 4), torch.zeros(1, 4)
    layers.rope_and_write(
        torch.ones(3, 24), torch.zeros(3, dtype=torch.int64), *tables, torch.tensor([5, -1, 0]), cache
    )
    assert cache.flatten(0, 1).flatten(1).any(1).nonzero().flatten().tolist() == [0, 5]


def test_every_half_is_rounded_as_torch_rounds_it() -> None:
    """Ties, subnormals, the largest, infinity: 16-bit caches hold the nearest number."""
    exact = torch.arange(0, 0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    between = (exact[1:] + exact[:-1]) / 2
    values = torch.cat(
        (exact, between, between * (1 + 1e-6), between * (1 - 1e-6), torch.tensor([65519.9, 65520.0, 1e30]))
    )
    values = torch.cat((values, -values))
    values = torch.cat((values, torch.zeros(-len(values) % 8))).view(-1, 8)
    rows = len(values)
    cache = torch.zeros(rows, 1, 2, 1, 8, dtype=torch.float16)
    qkv = torch.cat((torch.zeros(rows, 16), values), 1)
    zeros = torch.zeros(rows, dtype=torch.int64)
    layers.rope_and_write(qkv, zeros, torch.ones(1, 4), torch.zeros(1, 4), torch.arange(rows), cache)
    assert torch.equal(cache[:, 0, 1, 0].view(torch.int16), values.half().view(torch.int16))


def test_operations_replayed_equal_the_same_operations_eager() -> None:
    """Results lie in scratch; with new numbers at the same addresses the replay is right again."""
    rows, heads, kv_heads, head_dim = 5, 4, 2, 16
    weight, gate_up = drawn(64, seed=1), torch.empty(rows, 128)
    qkv = torch.empty(rows, (heads + 2 * kv_heads) * head_dim)
    positions, slots = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
    angles = drawn(30, head_dim // 2, seed=2)
    stream, cache = torch.empty(rows, 64), torch.zeros(4, 16, 2, kv_heads, head_dim)

    tape = native.Tape(native.Scratch(rows))
    cos, sin = angles.cos(), angles.sin()
    with tape.recording():
        kernels.rope_and_write(qkv, positions, cos, sin, slots, cache)
        result = kernels.rms_norm(kernels.silu_mul(gate_up), weight, 1e-5, residual=stream)
    for seed in range(3):
        found = []
        for replay in (True, False):
            gate_up.copy_(drawn(rows, 128, seed=seed)), qkv.copy_(drawn(rows, qkv.shape[1], seed=seed))
            positions.copy_(torch.arange(rows) + seed), slots.copy_(torch.arange(rows) * 3 + seed)
            stream.copy_(drawn(rows, 64, seed=9)), cache.zero_()
            if replay:
                tape.run()
                out = result.clone()
            else:
                kernels.rope_and_write(qkv, positions, cos, sin, slots, cache)
                out = kernels.rms_norm(kernels.silu_mul(gate_up), weight, 1e-5, residual=stream)
            found.append((out, stream.clone(), cache.clone(), qkv.clone()))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_scratch_says_when_it_is_too_small() -> None:
    with native.Tape(native.Scratch(4)).recording(), pytest.raises(ValueError, match="100 rows, and this scratch"):
        kernels.silu_mul(drawn(100, 8))


def test_one_tape_at_a_time() -> None:
    first, second = (native.Tape(native.Scratch(4)) for _ in range(2))
    with first.recording(), pytest.raises(RuntimeError, match="recorded already"), second.recording():
        pass
    assert native.recorded() is None and len(first) == len(second) == 0


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with NaN between the rows and between the numbers of a row."""
    spread = torch.full((tensor.shape[0], 2 * tensor.shape[1]), float("nan"), dtype=tensor.dtype)
    view = spread[:, ::2]
    view.copy_(tensor)
    return view


def test_tensors_that_do_not_lie_side_by_side() -> None:
    """`auto` leaves them to the definition; asked for by name, the kernel refuses instead of reading past them."""
    gate_up, weight = drawn(5, 24), drawn(24, seed=1)
    assert torch.equal(kernels.silu_mul(apart(gate_up)), reference.silu_mul(gate_up))
    torch.testing.assert_close(
        kernels.rms_norm(apart(gate_up), weight, 1e-5), reference.rms_norm(gate_up, weight, 1e-5)
    )
    ours, theirs = apart(drawn(5, 24, seed=2)), drawn(5, 24, seed=2)
    torch.testing.assert_close(
        kernels.rms_norm(gate_up, weight, 1e-5, ours), reference.rms_norm(gate_up, weight, 1e-5, theirs)
    )
    assert torch.equal(ours, theirs)
    for call in (
        lambda: layers.silu_mul(apart(gate_up)),
        lambda: layers.silu_mul(drawn(5, 30)[:, :24]),
        lambda: layers.rms_norm(apart(gate_up), weight, 1e-5),
        lambda: layers.rms_norm(gate_up, apart(weight[None])[0], 1e-5),
        lambda: layers.rms_norm(gate_up, weight, 1e-5, ours),
    ):
        with pytest.raises(ValueError, match=r"on a CPU: a tensor of shape .* must lie side by side"):
            call()


def test_rope_and_write_of_rows_that_lie_apart() -> None:
    kv_heads, head_dim = 1, 8
    qkv, cos, sin = drawn(4, 5 * head_dim), drawn(9, 4, seed=1), drawn(9, 4, seed=2)
    positions, slots = torch.tensor([0, 3, 8, 1]), torch.tensor([2, 1, 5, 0])
    caches = torch.zeros(2, 2, 3, 2, kv_heads, head_dim)
    views = apart(qkv), qkv.clone()
    for view, cache in zip(views, caches, strict=True):
        kernels.rope_and_write(view, positions, cos, sin, slots, cache)
    torch.testing.assert_close(*views)
    torch.testing.assert_close(*caches)
    with pytest.raises(ValueError, match="must lie side by side"):
        layers.rope_and_write(apart(qkv), positions, cos, sin, slots, caches[0])
