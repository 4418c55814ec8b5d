"""Faults put into small kernels on purpose: the checker must catch each, and must not cry at what is right."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.triton.interpreter import OutOfBounds, interpreting
from kernels.triton.interpreter.checker import poison

pytestmark = pytest.mark.skipif(not interpreting(), reason="the kernels are compiled: nothing is checked")


# -- lanes that a mask leaves out


@triton.jit
def _row_sum(x_ptr, out_ptr, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if OTHER:
        x = tl.load(x_ptr + i, mask=i < n, other=0)
    else:
        x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr, tl.sum(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
def test_a_load_without_other_shows_in_a_sum(dtype: torch.dtype) -> None:
    x, out = torch.arange(5).to(dtype), torch.zeros(1, dtype=dtype)
    _row_sum[(1,)](x, out, 5, OTHER=True, BLOCK=8)
    assert out.item() == 10
    _row_sum[(1,)](x, out, 5, OTHER=False, BLOCK=8)
    assert out.isnan().all() if dtype.is_floating_point else out.item() != 10


@triton.jit
def _copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def _widen(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n).to(tl.float32))


def test_lanes_that_are_masked_again_do_no_harm() -> None:
    x, out = torch.arange(5.0), torch.full((5,), -1.0)
    _copy[(1,)](x, out, 5, BLOCK=8)
    assert torch.equal(out, x)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float64], ids=str)
def test_undefined_lanes_of_every_float_type_are_nan(dtype: torch.dtype) -> None:
    x, out = torch.ones(8).to(dtype), torch.zeros(8)
    _widen[(1,)](x, out, 3, BLOCK=8)
    assert (out[:3] == 1).all() and out[3:].isnan().all()


def test_poison_of_whole_numbers_is_no_sensible_index() -> None:
    assert poison(tl.int32) == -1515870811 and poison(tl.uint8) == 0xA5 and poison(tl.int1)
    assert abs(int(poison(tl.int64))) > 2**62


@triton.jit
def _follow(table_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    block = tl.load(table_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.load(x_ptr + block))


def test_an_undefined_index_that_is_followed_is_caught() -> None:
    table, x, out = torch.arange(4, dtype=torch.int32), torch.arange(4.0), torch.zeros(4)
    _follow[(1,)](table, x, out, 4, BLOCK=4)
    assert torch.equal(out, x)
    with pytest.raises(OutOfBounds) as caught:
        _follow[(1,)](table, x, out, 3, BLOCK=4)
    assert caught.value.argument == "x_ptr" and caught.value.index == -1515870811


# -- addresses


@triton.jit
def _add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0) + 1, mask=i < n)


def test_an_error_says_who_where_and_how_many() -> None:
    x, out = torch.zeros(20), torch.zeros(20)
    _add_one[(3,)](x, out, 20, BLOCK=8)
    with pytest.raises(OutOfBounds) as caught:
        _add_one[(3,)](x, out, 21, BLOCK=8)  # a wrong mask: one lane too many
    error = caught.value
    assert (error.kernel, error.argument, error.index, error.program) == ("_add_one", "x_ptr", 20, (2, 0, 0))
    text = str(error)
    for said in (
        "kernel _add_one",
        "program (2, 0, 0)",
        "lane (4,)",
        "reads element 20 of x_ptr",
        "shape (20,)",
        "1 of 5",
    ):
        assert said in text


def test_a_store_out_of_bounds_is_caught_before_it_is_made() -> None:
    room = torch.zeros(24)
    with pytest.raises(OutOfBounds, match=r"writes element 20 of out_ptr"):
        _add_one[(3,)](torch.zeros(24), room[:20], 24, BLOCK=8)
    assert (room[20:] == 0).all()


def test_an_address_before_the_tensor_is_caught() -> None:
    room = torch.zeros(16)
    with pytest.raises(OutOfBounds) as caught:
        _follow[(1,)](torch.tensor([0, 1, -1, 2], dtype=torch.int32), room[8:], torch.zeros(4), 4, BLOCK=4)
    assert caught.value.index == -1


@pytest.mark.parametrize("block", [2147480000, -5, 4])
def test_garbage_in_a_block_table_is_caught(block: int) -> None:
    with pytest.raises(OutOfBounds) as caught:
        _follow[(1,)](torch.tensor([0, block], dtype=torch.int32), torch.zeros(4), torch.zeros(2), 2, BLOCK=2)
    assert caught.value.argument == "x_ptr" and caught.value.index == block


@triton.jit
def _row(cache_ptr, table_ptr, out_ptr, stride, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.load(table_ptr)
    if WIDE:
        block = block.to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(cache_ptr + block * stride + i))


def test_an_offset_that_overflows_32_bits_is_caught() -> None:
    """As in a cache of more than 2^31 elements, of which only the first row is here."""
    cache, table, out = torch.arange(4.0), torch.tensor([3], dtype=torch.int32), torch.zeros(4)
    with pytest.raises(OutOfBounds, match=r"to\(tl\.int64\)") as caught:
        _row[(1,)](cache, table, out, 2**30, WIDE=False, BLOCK=4)
    assert caught.value.index == 3 * 2**30 - 2**32
    with pytest.raises(OutOfBounds) as caught:
        _row[(1,)](cache, table, out, 2**30, WIDE=True, BLOCK=4)
    assert caught.value.index == 3 * 2**30  # the offset that was meant


@triton.jit
def _tile(x_ptr, out_ptr, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + row * COLS + col, tl.load(x_ptr + row * stride + col))


def test_a_view_is_held_to_its_own_elements() -> None:
    """Two columns of a matrix with eight: the third lies in the same storage, between the view's rows."""
    room = torch.arange(32.0).reshape(4, 8)
    out = torch.zeros(4, 2)
    _tile[(1,)](room[:, 2:4], out, 8, ROWS=4, COLS=2)
    assert torch.equal(out, room[:, 2:4])
    with pytest.raises(OutOfBounds, match="reads element 2 of x_ptr"):
        _tile[(1,)](room[:, 2:4], torch.zeros(4, 4), 8, ROWS=4, COLS=4)
    with pytest.raises(OutOfBounds, match="reads element 2 of x_ptr"):  # its stride taken for 2
        _tile[(1,)](room[:, 2:4], out, 2, ROWS=4, COLS=2)


def test_views_of_other_shapes_may_be_read_whole() -> None:
    out = torch.zeros(4, 4)
    _tile[(1,)](torch.arange(4.0).expand(4, 4), out, 0, ROWS=4, COLS=4)  # stride 0
    assert torch.equal(out, torch.arange(4.0).expand(4, 4))
    sliding = torch.arange(7.0).as_strided((4, 4), (1, 1))  # rows overlap
    _tile[(1,)](sliding, out, 1, ROWS=4, COLS=4)
    assert torch.equal(out, sliding)
    turned = torch.arange(16.0).reshape(4, 4).t()
    _tile[(1,)](turned, out, 4, ROWS=4, COLS=4)
    assert torch.equal(out, turned.t())


def test_an_empty_tensor_has_no_element() -> None:
    with pytest.raises(OutOfBounds, match="element 0 of x_ptr"):
        _copy[(1,)](torch.zeros(0), torch.zeros(8), 1, BLOCK=8)


@triton.jit
def _neighbour(x_ptr, y_ptr, out_ptr, distance, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + distance + i) + tl.load(y_ptr + i))


def test_another_argument_is_no_excuse() -> None:
    """x's pointer, moved so far that it meets y, which is a tensor of the launch as well."""
    room = torch.zeros(64)
    x, y = room[:8], room[32:40]
    with pytest.raises(OutOfBounds, match="element 32 of x_ptr"):
        _neighbour[(1,)](x, y, torch.zeros(8), 32, BLOCK=8)


@triton.jit
def _choose(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointers = tl.where(i % 2 == 0, x_ptr + i, y_ptr + i)
    tl.store(out_ptr + i, tl.load(pointers, mask=i < n, other=-1.0))


def test_pointers_chosen_from_two_arguments() -> None:
    x, y, out = torch.arange(6.0), torch.arange(6.0) + 10, torch.zeros(8)
    _choose[(1,)](x, y, out, 6, BLOCK=8)
    assert out.tolist() == [0, 11, 2, 13, 4, 15, -1, -1]
    with pytest.raises(OutOfBounds, match="outside all tensors of the launch"):
        _choose[(1,)](torch.zeros(2**16)[:6], y, out, 2**20, BLOCK=8)


@triton.jit
def _as_words(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    words = x_ptr.to(tl.pointer_type(tl.int32))
    tl.store(out_ptr + i, tl.load(words + i))


def test_a_pointer_to_another_type_stays_in_its_argument() -> None:
    room, out = torch.arange(16, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)
    _as_words[(1,)](room, out, BLOCK=4)
    assert torch.equal(out, room.view(torch.int32))
    with pytest.raises(OutOfBounds, match="x_ptr"):  # the last word's last byte is not its own
        _as_words[(1,)](room[:15], out, BLOCK=4)


@triton.jit
def _count(out_ptr, place, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr + place + tl.zeros((BLOCK,), tl.int32), 1)


@triton.jit
def _swap(out_ptr, place):
    tl.atomic_cas(out_ptr + place, 0, 1)


def test_atomics_are_checked() -> None:
    counts = torch.zeros(4, dtype=torch.int32)
    _count[(1,)](counts, 3, BLOCK=4)
    _swap[(1,)](counts, 1)
    assert counts.tolist() == [0, 1, 0, 4]
    with pytest.raises(OutOfBounds, match="updates element 4 of out_ptr"):
        _count[(1,)](counts, 4, BLOCK=4)
    with pytest.raises(OutOfBounds, match="updates element -1 of out_ptr"):
        _swap[(1,)](counts, -1)


@triton.jit
def _helper(x_ptr, i):
    return tl.load(x_ptr + i)


@triton.jit
def _through_helper(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, _helper(x_ptr, i))


def test_a_device_function_is_checked_too() -> None:
    with pytest.raises(OutOfBounds, match="kernel _through_helper"):
        _through_helper[(1,)](torch.zeros(4), torch.zeros(8), BLOCK=8)


@triton.jit
def _tiles(descriptor, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    tile = descriptor.load([0, 0])
    tl.store(out_ptr + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :], tile)


def test_a_descriptor_that_claims_more_rows_than_there_are() -> None:
    x, out = torch.ones(4, 16), torch.zeros(8, 16)
    _tiles[(1,)](TensorDescriptor(x, [4, 16], [16, 1], [8, 16]), out, ROWS=8, COLS=16)
    assert (out[:4] == 1).all() and (out[4:] == 0).all()
    with pytest.raises(OutOfBounds, match=r"element 64 of descriptor\.base"):
        _tiles[(1,)](TensorDescriptor(x, [6, 16], [16, 1], [8, 16]), out, ROWS=8, COLS=16)
