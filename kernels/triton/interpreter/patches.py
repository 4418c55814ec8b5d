"""Puts the repairs in place and takes them away again; refuses a Triton whose interpreter is not the one known here."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import min_dot_size
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner, interpreter
from triton.runtime.errors import InterpreterError

from kernels.triton.interpreter import arithmetic, checker, reductions
from kernels.triton.interpreter.extents import Launch

KNOWN_VERSIONS = "3.6 to 3.9"
MAX_GRID_YZ = 65535
_MISSING = object()
_Builder = interpreter.InterpreterBuilder

# What is replaced or relied on, with the parameters of the versions known; "+" for those whose rest is passed on as is.
_KNOWN = {
    (_Builder, "binary_op"): ["self lhs rhs op"],
    (_Builder, "unary_op"): ["self arg op"],
    (_Builder, "create_minnumf"): ["self lhs rhs"],
    (_Builder, "create_maxnumf"): ["self lhs rhs"],
    (_Builder, "create_clampf"): ["self arg lo hi propagate_nans"],
    (_Builder, "create_fma"): ["self x y z"],
    (_Builder, "cast_impl"): ["self src dst_type"],
    (_Builder, "create_fp_to_fp"): ["self src dst_type rounding_mode"],
    (_Builder, "create_dot"): ["self a b d input_precision max_num_imprecise_acc"],
    (_Builder, "create_masked_load"): ["self ptrs mask other +"],
    (_Builder, "create_masked_store"): ["self ptrs value mask +"],
    (_Builder, "create_descriptor_load"): ["self desc indices +"],
    (_Builder, "create_atomic_rmw"): ["self rmwOp ptr val mask sem scope"],
    (_Builder, "create_atomic_cas"): ["self ptr +"],
    (_Builder, "create_bitcast"): ["self src dst_type"],
    (_Builder, "create_select"): ["self cond lhs rhs"],
    (_Builder, "set_grid_dim"): ["self nx ny nz"],
    (interpreter.ReduceOps, "min_max"): ["self input val_reduce_op idx_reduce_op"],
    (interpreter.ReduceOps, "sum"): ["self input"],
    (interpreter.ScanOps, "cumsum"): ["self input"],
    (interpreter.ScanOps, "cumprod"): ["self input"],
    (interpreter.GridExecutor, "__call__"): ["self args_dev kwargs"],
    (interpreter.GridExecutor, "_init_args_hst"): ["self args_dev kwargs"],
    (interpreter.TensorDescHandle, "materialize_pointers"): ["self offsets"],
    (autotuner.Autotuner, "run"): ["self args kwargs"],
    (TritonSemantic, "dot_scaled"): ["self lhs lhs_scale lhs_format rhs rhs_scale rhs_format +"],
    (interpreter, "_implicit_cvt"): ["arg"],
    (interpreter, "_patch_lang_tensor"): ["tensor +"],
    (interpreter, "_get_np_dtype"): ["tt_dtype"],
}


class UnknownInterpreter(RuntimeError):
    """This Triton's interpreter is not built as the ones that `faithful` repairs."""


class Context(NamedTuple):
    """One `faithful(...)` that is open. ``check``: whether launches in it are checked."""

    check: bool


_contexts: list[Context] = []
_changes: list[tuple[Any, str, Any]] = []
_lock = threading.RLock()
_launching = threading.RLock()  # the interpreter keeps the grid in one global: one kernel at a time


def enter(context: Context) -> None:
    """Opens a context; the first one puts the repairs in place."""
    with _lock:
        if not _contexts:
            _install()
        _contexts.append(context)


def leave(context: Context) -> None:
    """Closes a context; the last one takes the repairs away. Contexts of several threads may close in any order."""
    with _lock:
        del _contexts[max(i for i, other in enumerate(_contexts) if other is context)]
        if not _contexts:
            _restore()


def _install() -> None:
    _refuse_unknown()
    try:
        for name, function in arithmetic.BUILDER.items():
            _change(_Builder, name, function)
        for name, wrap in checker.WRAPPERS.items():
            _change(_Builder, name, wrap(getattr(_Builder, name)))
        for name, function in reductions.REDUCE.items():
            _change(interpreter.ReduceOps, name, function)
        for name, function in reductions.SCAN.items():
            _change(interpreter.ScanOps, name, function)
        for owner, name, wrap in (
            (_Builder, "set_grid_dim", _set_grid_dim),
            (interpreter.GridExecutor, "__call__", _call),
            (interpreter.GridExecutor, "_init_args_hst", _init_args_hst),
            (autotuner.Autotuner, "run", _run),
            (TritonSemantic, "dot_scaled", _dot_scaled),
            (interpreter, "_implicit_cvt", _implicit_cvt),
            (interpreter, "_patch_lang_tensor", _patch_lang_tensor),
        ):
            _change(owner, name, wrap(getattr(owner, name)))
        builder = interpreter.interpreter_builder
        limits = min_dot_size(GPUTarget("cuda", 90, 32))
        _change(builder, "codegen_fns", {**builder.codegen_fns, "min_dot_size": limits})
        # Every sum of whole numbers would be made once more in 64 bits for an assertion that is off.
        _change(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
    except BaseException:
        _restore()
        raise


def _change(owner: Any, name: str, value: Any) -> None:
    _changes.append((owner, name, vars(owner).get(name, _MISSING)))
    setattr(owner, name, value)


def _restore() -> None:
    while _changes:
        owner, name, before = _changes.pop()
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _refuse_unknown() -> None:
    """Raises `UnknownInterpreter` unless everything that is replaced or relied on has the parameters known here."""
    for (owner, name), known in _KNOWN.items():
        function = getattr(owner, name, None)
        found = "is missing" if function is None else f"takes ({', '.join(inspect.signature(function).parameters)})"
        if function is None or not any(_fits(list(inspect.signature(function).parameters), form) for form in known):
            where = f"{getattr(owner, '__name__', owner)}.{name}"
            message = f"Triton {triton.__version__}: {where} {found}; known here is ({' or '.join(known)})"
            raise UnknownInterpreter(f"{message}. faithful() repairs Triton {KNOWN_VERSIONS}: install one of these")


def _fits(parameters: list[str], form: str) -> bool:
    names = form.split()
    return parameters[: len(names) - 1] == names[:-1] if names[-1] == "+" else parameters == names


# -- what wraps Triton's own functions --------------------------------------------------------------------------------


def _set_grid_dim(original: Callable[..., None]) -> Callable[..., None]:
    def set_grid_dim(self: Any, nx: int, ny: int, nz: int) -> None:
        if max(ny, nz) > MAX_GRID_YZ:
            raise ValueError(f"grid ({nx}, {ny}, {nz}): y and z end at {MAX_GRID_YZ} on a GPU; put the long axis on x")
        original(self, nx, ny, nz)

    return set_grid_dim


def _call(original: Callable[..., None]) -> Callable[..., None]:
    """A launch: alone, without numpy's warnings (a GPU gives none for inf − inf), and an address out of bounds is told
    as that and not as Triton's `InterpreterError`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        with _launching, np.errstate(all="ignore"):
            try:
                original(self, *args, **kwargs)
            except InterpreterError as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, checker.OutOfBounds):
                    cause = cause.__cause__
                if cause is None:
                    raise
                raise cause from None
            finally:
                checker.begin(None)

    return call


def _init_args_hst(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a launch's tensors become known: on the host, just before the grid runs."""

    def init_args_hst(self: Any, args_dev: Any, kwargs: dict[str, Any]) -> Any:
        args, named = original(self, args_dev, kwargs)
        arguments = [*zip(self.arg_names, args, strict=False), *named.items()]
        checker.begin(Launch(self.fn.__name__, arguments, bool(_contexts) and _contexts[-1].check))
        return args, named

    return init_args_hst


def _implicit_cvt(original: Callable[..., Any]) -> Callable[..., Any]:
    def implicit_cvt(arg: Any) -> Any:
        if type(arg) is float:  # fp32 on a GPU; Triton leaves it a Python number, which computes in float64
            return tl.tensor(interpreter.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)
        converted = original(arg)
        if type(arg) is int:  # from 2^31 to 2^32 the type says 64 bits and the data are 32, which then wrap around
            handle = converted.handle
            handle.data = handle.data.astype(interpreter._get_np_dtype(handle.dtype))
        return checker.tag(arg, converted) if hasattr(arg, "data_ptr") else converted

    return implicit_cvt


def _patch_lang_tensor(original: Callable[..., None]) -> Callable[..., None]:
    """A loop bound is an array of one element, which newer numpy does not turn into an int."""

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patch_lang_tensor


class _FormatName(str):
    """The name of a scaled format, which Triton 3.6 asks for its ``value`` as it would a constexpr."""

    @property
    def value(self) -> str:
        return str(self)


def _dot_scaled(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot_scaled(
        self: Any, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, rhs_scale: Any, rhs_format: Any, *rest: Any
    ) -> Any:
        left, right = (_FormatName(getattr(format, "value", format)) for format in (lhs_format, rhs_format))
        return original(self, lhs, lhs_scale, left, rhs, rhs_scale, right, *rest)

    return dot_scaled


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Autotuning measures on a GPU; here the first configuration that the kernel's own pruning leaves is taken."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        every = self.configs
        with _launching:
            if len(every) > 1:
                self.configs = _pruned(self, args, kwargs)[:1]
            try:
                return original(self, *args, **kwargs)
            finally:
                self.configs = every

    return run


def _pruned(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if not tuner.early_config_prune:
        return tuner.configs
    left = tuner.early_config_prune(tuner.configs, dict(zip(tuner.arg_names, args, strict=False)), **kwargs)
    if not left:
        raise ValueError(f"{tuner.base_fn.__name__}: its pruning leaves none of {len(tuner.configs)} configurations")
    return left
