"""Triton's interpreter made faithful to a GPU, and a checker on top of it. Nothing happens unless asked for.

    with faithful():              # or @faithful() on a function
        kernel[grid](x, y, ...)   # in a process that was started with TRITON_INTERPRET=1

Inside, these defects of the interpreter (Triton 3.6 to 3.9) are repaired; on leaving, Triton is as it was:

- **bf16 arithmetic** works on the uint16 that holds a number (1 + 1 gives 10^38), `tl.dot` of bf16 errs by 10^10, a
  whole number becomes the bf16 of those bits. Here each operation computes in float32 and rounds once.
- **float32 → bf16** cuts off, so half of all values differ; float64 → bf16 gives garbage. Here one rounding, to nearest
  even.
- **bf16 beside a Python number** raises in 3.6 (`get_bf16`).
- **→ fp8** rounds ties away, loses a carry (126.24 → 64) and wraps at overflow (500 → 256, 464 → NaN). Here to nearest
  even and saturating (±448, ±57344, infinity too), for e4m3 and e5m2, or cut off with `fp_downcast_rounding="rtz"`.
  AMD's fp8 types are left as they are.
- **`tl.dot` of float32** is exact, where a GPU rounds to tf32 unless told `input_precision="ieee"`; here it rounds. A
  result in fp16 is rounded once. K must be as large as a GPU's compiler asks (16, of fp8 and int8 32).
- **`tl.dot_scaled`** is missing in 3.6; in 3.9 it reads e4m3 scales (NVFP4) as powers of two.
- **Autotuning** over several configurations asks for a GPU; here the first that the kernel's pruning leaves is taken.
- **All NaN** makes `tl.argmax` raise in 3.9 and `tl.max` warn; here NaN and index 0. **One NaN** makes `tl.maximum` NaN
  in 3.6; on a GPU, and here, it is passed over.
- **Sums** of halfs and bf16 are rounded once at the end; a GPU, and this, rounds each sum of a tree. A sum of int32
  that overflows raises in 3.6; here it wraps around, as does int1 (True + True is True in 3.6).
- **A loop bound read from memory** raises in 3.6 with numpy ≥ 2.4.
- **Float arguments** stay Python numbers, so they compute in float64 and take the other operand's type; here fp32.
- **True and False** as arguments raise in 3.6.
- **Whole arguments from 2^31 to 2^32** are held in 32 bits, so two of them wrap around; here 64, as their type says.
- **Atomic addition of bf16** raises; **`tl.fma`** rounds twice in 3.6; **descriptors** cannot pad bf16 with NaN.
- **A grid** with y or z over 65535 runs; a GPU refuses it, and here it raises ValueError.
- numpy's warnings (inf − inf) are silenced, as a GPU gives none.

With ``check=True`` (the default) furthermore:

- A **masked load without `other`** gives 0 to its masked lanes, which hides a bug: on a GPU they are undefined. Here
  they are NaN, and 0xA5A5… in whole numbers.
- Every **address** of a load, store or atomic must be an element of the argument it was derived from; else
  `OutOfBounds` names kernel, argument and element before memory is touched. Block-table garbage and int32 overflow end
  there.

What stays different: programs run one after the other, so no race shows; sums run in another order; a·b + c is not
contracted to one rounding; Hopper's 14-bit accumulation of fp8 is not modelled; exp and the like are numpy's, not the
GPU's approximations; inline assembly and libdevice are absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernels.triton.interpreter.errors import OutOfBounds, UnknownInterpreter

__all__ = ["OutOfBounds", "UnknownInterpreter", "faithful", "interpreting"]


def interpreting() -> bool:
    """Whether kernels of this process are interpreted: TRITON_INTERPRET=1 stood when Triton was first imported."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return not isinstance(tl.sum, JITFunction)


@contextmanager
def faithful(check: bool = True) -> Iterator[None]:
    """Within it interpreted kernels compute as a GPU does, and with ``check`` undefined lanes are poisoned and wrong
    addresses raise `OutOfBounds`. May be nested (the innermost says whether to check) and used by several threads,
    whose kernels then run one at a time; a decorator too. Where kernels are compiled it does nothing. Raises
    `UnknownInterpreter` for a Triton that is built otherwise.
    """
    if not interpreting():
        yield
        return
    try:
        from kernels.triton.interpreter import launches, patches
    except (ImportError, AttributeError) as missing:
        raise UnknownInterpreter(str(missing)) from missing
    context = launches.Context(check)
    patches.enter(context)
    try:
        yield
    finally:
        patches.leave(context)
