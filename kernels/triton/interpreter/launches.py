"""What a launch, an argument, a loop bound and a tuner do otherwise in the faithful interpreter.

Each `wrap_…` takes Triton's own function of that name and returns what stands in for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from kernels.triton.interpreter import checker
from kernels.triton.interpreter.extents import Launch

MAX_GRID_YZ = 65535


class Context(NamedTuple):
    """One `faithful(...)` that is open. ``check``: whether launches in it are checked."""

    check: bool


contexts: list[Context] = []  # the innermost last
_launching = threading.RLock()  # the interpreter keeps the grid in one global: one kernel at a time
_language_scopes: list[tuple[set[int], Any]] = []  # of the kernel that runs: modules of the language, how to restore


def wrap_set_grid_dim(original: Callable[..., None]) -> Callable[..., None]:
    def set_grid_dim(self: Any, nx: int, ny: int, nz: int) -> None:
        if max(ny, nz) > MAX_GRID_YZ:
            raise ValueError(f"grid ({nx}, {ny}, {nz}): y and z end at {MAX_GRID_YZ} on a GPU; put the long axis on x")
        original(self, nx, ny, nz)

    return set_grid_dim


def wrap_call(original: Callable[..., None]) -> Callable[..., None]:
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


def wrap_init_args_hst(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a launch's tensors become known: on the host, just before the grid runs."""

    def init_args_hst(self: Any, args_dev: Any, kwargs: dict[str, Any]) -> Any:
        args, named = original(self, args_dev, kwargs)
        arguments = [*zip(self.arg_names, args, strict=False), *named.items()]
        checker.begin(Launch(self.fn.__name__, arguments, bool(contexts) and contexts[-1].check))
        return args, named

    return init_args_hst


def wrap_implicit_cvt(original: Callable[..., Any]) -> Callable[..., Any]:
    def implicit_cvt(arg: Any) -> Any:
        if type(arg) is float:  # fp32 on a GPU; Triton leaves it a Python number, which computes in float64
            return tl.tensor(interpreter.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)
        if type(arg) is bool:  # 3.6 refuses to hold it
            return tl.tensor(interpreter.TensorHandle(np.array([arg]), tl.int1), tl.int1)
        converted = original(arg)
        if type(arg) is int:  # from 2^31 to 2^32 the type says 64 bits and the data are 32, which then wrap around
            handle = converted.handle
            handle.data = handle.data.astype(interpreter._get_np_dtype(handle.dtype))
        return checker.tag(arg, converted) if hasattr(arg, "data_ptr") else converted

    return implicit_cvt


class _AllScopes:
    """Stands in for the scope of a launch, so that those of its device functions end with it."""

    def restore(self) -> None:
        while _language_scopes:
            _language_scopes.pop()[1].restore()


def wrap_patch_lang(original: Callable[..., Any]) -> Callable[..., Any]:
    """Triton exchanges the functions of its language for a launch, and once more at every call of a device function
    (which takes a third of the time) without ever putting these back. Once a launch is enough."""

    def patch_lang(fn: Any) -> _AllScopes:
        modules = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if not modules or not any(modules <= done for done, _ in _language_scopes):
            _language_scopes.append((modules, original(fn)))
        return _AllScopes()

    return patch_lang


def wrap_patch_lang_tensor(original: Callable[..., None]) -> Callable[..., None]:
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


def wrap_dot_scaled(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot_scaled(
        self: Any, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, rhs_scale: Any, rhs_format: Any, *rest: Any
    ) -> Any:
        left, right = (_FormatName(getattr(format, "value", format)) for format in (lhs_format, rhs_format))
        return original(self, lhs, lhs_scale, left, rhs, rhs_scale, right, *rest)

    return dot_scaled


def wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
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
