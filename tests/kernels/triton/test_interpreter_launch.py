"""How kernels are launched in the faithful interpreter, and that outside of it Triton is as it was."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner, interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.triton.interpreter import OutOfBounds, UnknownInterpreter, faithful, interpreting, launches, patches

pytestmark = pytest.mark.skipif(not interpreting(), reason="the kernels are compiled: there is no interpreter to test")

OWNERS = (
    interpreter,
    interpreter.InterpreterBuilder,
    interpreter.ReduceOps,
    interpreter.ScanOps,
    interpreter.GridExecutor,
    interpreter.interpreter_builder,
    autotuner.Autotuner,
    TritonSemantic,
    tl,
    tl.core,
    tl.tensor,
)


@pytest.fixture
def outside(_faithful_interpreter) -> None:
    """The folder's own context closed for one test; a launch first, whose traces are Triton's own."""
    (context,) = launches.contexts
    patches.leave(context)
    doubled(torch.ones(2))
    yield
    patches.enter(context)


@triton.jit
def _double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def _total(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


def doubled(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    _double[(triton.cdiv(x.numel(), 8),)](x, y, x.numel(), BLOCK=8)
    return y


# -- outside


def everything() -> list[dict[str, object]]:
    """All attributes of what is patched; not the grid, which a launch leaves behind."""
    return [{name: value for name, value in vars(owner).items() if "grid" not in name} for owner in OWNERS]


def test_outside_nothing_is_changed(outside: None) -> None:
    before = everything()
    with faithful():
        assert everything() != before
        doubled(torch.ones(10))
        total = torch.zeros(1)
        _total[(1,)](torch.ones(8), total, BLOCK=8)  # by a device function, after which Triton itself cleans up nothing
        assert total.item() == 8
    assert everything() == before
    with pytest.raises(ZeroDivisionError), faithful():
        raise ZeroDivisionError
    assert everything() == before


def test_outside_bf16_is_as_wrong_as_ever(outside: None) -> None:
    """So that the day Triton repairs it is noticed here, and the repair can go."""
    x = torch.full((8,), 1.5, dtype=torch.bfloat16)
    assert not torch.equal(doubled(x), x * 2)
    with faithful():
        assert torch.equal(doubled(x), x * 2)
    assert not torch.equal(doubled(x), x * 2)


def test_as_a_decorator_and_nested(outside: None) -> None:
    before = everything()

    @faithful()
    def twice(x: torch.Tensor) -> torch.Tensor:
        with faithful(check=False):
            return doubled(x)

    x = torch.full((5,), 3.25, dtype=torch.bfloat16)
    assert torch.equal(twice(x), x * 2) and torch.equal(twice(x), x * 2)
    assert everything() == before


def test_the_innermost_context_says_whether_to_check() -> None:
    x, short = torch.ones(64)[:8], torch.ones(64)[:4]
    with pytest.raises(OutOfBounds):
        _double[(1,)](x, short, 8, BLOCK=8)
    with faithful(check=False):
        _double[(1,)](x, short, 8, BLOCK=8)  # the view is left, not its storage
    with pytest.raises(OutOfBounds):
        _double[(1,)](x, short, 8, BLOCK=8)


def test_threads_may_enter_and_leave_in_any_order(outside: None) -> None:
    before, results, inside, go_on = everything(), [], threading.Barrier(4), threading.Event()
    x = torch.arange(64).to(torch.bfloat16)

    def work(number: int) -> None:
        with faithful(check=number % 2 == 0):
            inside.wait()
            results.extend(torch.equal(doubled(x + number), 2 * (x + number)) for _ in range(3))
            if number == 0:
                go_on.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    go_on.set()
    threads[0].join()
    assert results == [True] * 12 and everything() == before


@pytest.mark.parametrize("missing", [True, False])
def test_a_triton_that_is_built_otherwise_is_refused_and_left_alone(outside, monkeypatch, missing: bool) -> None:
    if missing:
        monkeypatch.delattr(interpreter.InterpreterBuilder, "create_masked_load")
    else:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", lambda self, pointers: None)
    before = everything()
    refusal = rf"Triton {triton.__version__}: .*create_masked_load .*3\.6 to 3\.9"
    with pytest.raises(UnknownInterpreter, match=refusal), faithful():
        pass
    assert everything() == before


# -- launches


def _pruned(configs, named_args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= named_args["n"]]


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def _tuned(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, BLOCK, mask=i < n)


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 16})],
    key=["n"],
    prune_configs_by={"early_config_prune": _pruned},
)
@triton.jit
def _tuned_and_pruned(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, BLOCK, mask=i < n)


def test_autotuning_takes_the_first_configuration_that_pruning_leaves() -> None:
    x = torch.zeros(20, dtype=torch.int32)
    _tuned[(1,)](x, 20)
    assert x.tolist() == [64] * 20 and len(_tuned.configs) == 3
    _tuned_and_pruned[(1,)](x, 20)
    assert x.tolist() == [16] * 16 + [64] * 4
    with pytest.raises(ValueError, match="leaves none of 2"):
        _tuned_and_pruned[(1,)](x, 8)


@triton.jit
def _count(bounds_ptr, out_ptr):
    total = 0
    for i in range(tl.load(bounds_ptr), tl.load(bounds_ptr + 1)):
        total += i
    for _ in tl.range(tl.max(tl.load(bounds_ptr + tl.arange(0, 2)))):
        total += 100
    tl.store(out_ptr, total)


def test_loop_bounds_may_be_read_from_memory() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    _count[(1,)](torch.tensor([2, 5], dtype=torch.int32), out)
    assert out.item() == 2 + 3 + 4 + 500


@triton.jit
def _scalars(x_ptr, out_ptr, product_ptr, scale, large, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i) * scale)
    tl.store(product_ptr, large * large)


def test_a_float_argument_is_fp32_and_a_large_whole_one_has_64_bits() -> None:
    x, out, product = torch.full((4,), 3.0, dtype=torch.bfloat16), torch.zeros(4), torch.zeros(1, dtype=torch.int64)
    _scalars[(1,)](x, out, product, 1 / 3, 3_000_000_000, BLOCK=4)
    assert torch.equal(out, torch.full((4,), 3.0) * torch.tensor(1 / 3))  # not rounded to bf16 on the way
    assert product.item() == 3_000_000_000**2


@triton.jit
def _wrap(out_ptr, a, b):
    tl.store(out_ptr, a * b)


@triton.jit
def _chosen(out_ptr, add, n):
    value = n * add
    if add:
        value += n
    tl.store(out_ptr, value)


@pytest.mark.parametrize("add", [False, True])
def test_a_truth_value_may_be_an_argument(add: bool) -> None:
    out = torch.full((1,), -1, dtype=torch.int32)
    _chosen[(1,)](out, add, 5)
    assert out.item() == (10 if add else 0)


def test_int32_still_wraps_around() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    _wrap[(1,)](out, 70000, 70000)
    assert out.item() == 70000 * 70000 - 2**32


@triton.jit
def _bits(out_ptr, BLOCK: tl.constexpr):
    odd = tl.arange(0, BLOCK) % 2 == 1
    tl.store(out_ptr + tl.arange(0, BLOCK), (odd ^ odd).to(tl.int32) + (odd + odd).to(tl.int32))


def test_int1_wraps_around() -> None:
    out = torch.ones(4, dtype=torch.int32)
    _bits[(1,)](out, BLOCK=4)
    assert out.tolist() == [0] * 4


@pytest.mark.parametrize("axis", [1, 2])
def test_a_grid_that_a_gpu_refuses(axis: int) -> None:
    grid = tuple(65536 if i == axis else 1 for i in range(3))
    with pytest.raises(ValueError, match="65535"):
        _wrap[grid](torch.zeros(1, dtype=torch.int32), 1, 1)


@triton.jit
def _load_tile(descriptor, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    tile = descriptor.load([2, 0])
    tl.store(out_ptr + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :], tile)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_descriptor_pads_and_is_not_poisoned(dtype: torch.dtype, padding: str) -> None:
    x, out = torch.ones(4, 16, dtype=dtype), torch.zeros(4, 16, dtype=dtype)
    try:
        descriptor = TensorDescriptor(x, list(x.shape), list(x.stride()), [4, 16], padding=padding)
    except TypeError:
        pytest.skip("this Triton's descriptors know no padding but zero")
    _load_tile[(1,)](descriptor, out, ROWS=4, COLS=16)
    assert torch.equal(out[:2], x[2:])
    assert out[2:].isnan().all() if padding == "nan" else (out[2:] == 0).all()
