"""Triton's interpreter made faithful to a GPU, and a checker that runs on top of it. Nothing happens unless asked for.

    with faithful():              # or @faithful() on a function
        kernel[grid](x, y, ...)   # in a process that was started with TRITON_INTERPRET=1

Inside, these defects of the interpreter (Triton 3.6 to 3.9) are repaired; on leaving, Triton is as it was:

- **bf16 arithmetic** works on the uint16 that holds a number (1 + 1 gives garbage or NaN), `tl.dot` of bf16 errs by 10^10.
  Here each operation computes in float32 and rounds once; comparisons, min/max, sums and whole numbers cast to bf16 too.
- **float32 → bf16** cuts off (a quarter of all values differ); here to nearest even, from float64 with one rounding.
- **bf16 beside a Python number** raises (`get_bf16`, 3.6) or gives 0 (3.9).
- **→ fp8** rounds ties away, loses a carry (126.24 → 64) and wraps at overflow (500 → 256); here to nearest even and
  saturating (±448, ±57344), e4m3 and e5m2, `fp_downcast_rounding="rtz"` too. AMD's fp8 types are left as they are.
- **`tl.dot` of float32** is exact, where a GPU rounds to tf32 unless told `input_precision="ieee"`; here it rounds. fp16
  results are rounded once. The smallest sizes that a GPU compiles (K ≥ 16, fp8 and int8 K ≥ 32) hold.
- **`tl.dot_scaled`** is missing in 3.6, and reads e4m3 scales (NVFP4) wrong in 3.9.
- **Autotuning** with several configurations asks for a GPU; here the first that the kernel's own pruning leaves is taken.
- **All NaN** makes `tl.max(return_indices=True)` and `tl.argmax` raise, and `tl.max` warn; here NaN and index 0. One NaN
  among numbers (3.6) makes `tl.max` and `tl.maximum` NaN; on a GPU, and here, it is passed over.
- **A loop bound read from memory** raises TypeError with numpy ≥ 2.4 (3.6).
- **Float arguments** stay Python numbers, so they compute in float64 and take the other operand's type; here fp32.
- **Whole arguments from 2^31 to 2^32** are held in 32 bits and wrap around; here 64, as their type says.
- **int1** saturates in 3.6 (True + True); **atomic addition of bf16** is missing; **`tl.fma`** rounds twice in 3.6.
- **Descriptors** (TMA) cannot pad bf16 with NaN.
- A grid with y or z over 65535 runs; a GPU refuses it, and here it raises ValueError.
- numpy's warnings (inf − inf) are silenced, as a GPU has none.

With ``check=True`` (the default) furthermore:

- A **masked load without `other`** gives 0 to its masked lanes, which hides a bug: on a GPU they are undefined. Here they
  are NaN, and 0xA5A5… in whole numbers.
- Every **address** of a load, store or atomic must be an element of the argument it was derived from; else `OutOfBounds`
  names kernel, argument and element before memory is touched. Block-table garbage and int32 overflow end there.

What stays different: programs run one after the other, so no race shows; sums run in numpy's order; a·b + c is not
contracted to one rounding; Hopper's 14-bit accumulation of fp8 is not modelled; inline assembly and libdevice are absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.triton.interpreter.checker import OutOfBounds
    from kernels.triton.interpreter.patches import UnknownInterpreter

__all__ = ["OutOfBounds", "UnknownInterpreter", "faithful", "interpreting"]


def interpreting() -> bool:
    """Whether kernels of this process are interpreted: TRITON_INTERPRET=1 stood when Triton was first imported."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return not isinstance(tl.sum, JITFunction)


@contextmanager
def faithful(check: bool = True) -> Iterator[None]:
    """Within it interpreted kernels compute as a GPU does, and with ``check`` undefined lanes are poisoned and wrong
    addresses raise `OutOfBounds`. May be nested (the innermost says whether to check) and used by several threads, whose
    kernels then run one at a time; a decorator too. Where kernels are compiled it does nothing. Raises
    `UnknownInterpreter` for a Triton that is built otherwise.
    """
    if not interpreting():
        yield
        return
    from kernels.triton.interpreter import patches

    context = patches.Context(check)
    patches.enter(context)
    try:
        yield
    finally:
        patches.leave(context)


def __getattr__(name: str) -> Any:
    """The two errors, whose modules import Triton, when they are asked for."""
    if name == "OutOfBounds":
        from kernels.triton.interpreter.checker import OutOfBounds

        return OutOfBounds
    if name == "UnknownInterpreter":
        from kernels.triton.interpreter.patches import UnknownInterpreter

        return UnknownInterpreter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
