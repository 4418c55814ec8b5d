"""Puts the repairs in place and takes them away again; refuses a Triton whose interpreter is not the one known here."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import min_dot_size
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner, interpreter

from kernels.triton.interpreter import arithmetic, checker, launches, reductions
from kernels.triton.interpreter.errors import UnknownInterpreter
from kernels.triton.interpreter.launches import Context, contexts

_MISSING = object()
_Builder = interpreter.InterpreterBuilder

# What is replaced or relied on, with the parameters of the versions known; "+" for those whose rest is passed on as is.
_KNOWN = {
    (_Builder, "binary_op"): "self lhs rhs op",
    (_Builder, "unary_op"): "self arg op",
    (_Builder, "create_minnumf"): "self lhs rhs",
    (_Builder, "create_maxnumf"): "self lhs rhs",
    (_Builder, "create_clampf"): "self arg lo hi propagate_nans",
    (_Builder, "create_fma"): "self x y z",
    (_Builder, "cast_impl"): "self src dst_type",
    (_Builder, "create_fp_to_fp"): "self src dst_type rounding_mode",
    (_Builder, "create_dot"): "self a b d input_precision max_num_imprecise_acc",
    (_Builder, "create_masked_load"): "self ptrs mask other +",
    (_Builder, "create_masked_store"): "self ptrs value mask +",
    (_Builder, "create_descriptor_load"): "self desc indices +",
    (_Builder, "create_atomic_rmw"): "self rmwOp ptr val mask sem scope",
    (_Builder, "create_atomic_cas"): "self ptr +",
    (_Builder, "create_bitcast"): "self src dst_type",
    (_Builder, "create_select"): "self cond lhs rhs",
    (_Builder, "set_grid_dim"): "self nx ny nz",
    (interpreter.ReduceOps, "min_max"): "self input val_reduce_op idx_reduce_op",
    (interpreter.ReduceOps, "sum"): "self input",
    (interpreter.ScanOps, "cumsum"): "self input",
    (interpreter.ScanOps, "cumprod"): "self input",
    (interpreter.GridExecutor, "__call__"): "self args_dev kwargs",
    (interpreter.GridExecutor, "_init_args_hst"): "self args_dev kwargs",
    (interpreter.TensorDescHandle, "materialize_pointers"): "self offsets",
    (autotuner.Autotuner, "run"): "self args kwargs",
    (TritonSemantic, "dot_scaled"): "self lhs lhs_scale lhs_format rhs rhs_scale rhs_format +",
    (interpreter, "_implicit_cvt"): "arg",
    (interpreter, "_patch_lang"): "fn",
    (interpreter, "_patch_lang_tensor"): "tensor +",
    (interpreter._LangPatchScope, "restore"): "self",
    (interpreter, "_get_np_dtype"): "tt_dtype",
}


_changes: list[tuple[Any, str, Any]] = []
_lock = threading.RLock()


def enter(context: Context) -> None:
    """Opens a context; the first one puts the repairs in place."""
    with _lock:
        if not contexts:
            _install()
        contexts.append(context)


def leave(context: Context) -> None:
    """Closes a context; the last one takes the repairs away. Contexts of several threads may close in any order."""
    with _lock:
        del contexts[max(i for i, other in enumerate(contexts) if other is context)]
        if not contexts:
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
            (_Builder, "set_grid_dim", launches.wrap_set_grid_dim),
            (interpreter.GridExecutor, "__call__", launches.wrap_call),
            (interpreter.GridExecutor, "_init_args_hst", launches.wrap_init_args_hst),
            (autotuner.Autotuner, "run", launches.wrap_run),
            (TritonSemantic, "dot_scaled", launches.wrap_dot_scaled),
            (interpreter, "_implicit_cvt", launches.wrap_implicit_cvt),
            (interpreter, "_patch_lang", launches.wrap_patch_lang),
            (interpreter, "_patch_lang_tensor", launches.wrap_patch_lang_tensor),
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
        parameters = [] if function is None else list(inspect.signature(function).parameters)
        if not _fits(parameters, known):
            found = "is missing" if function is None else f"takes ({' '.join(parameters)})"
            raise UnknownInterpreter(f"{owner.__name__}.{name} {found}; known here is ({known})")


def _fits(parameters: list[str], form: str) -> bool:
    names = form.split()
    return parameters[: len(names) - 1] == names[:-1] if names[-1] == "+" else parameters == names
