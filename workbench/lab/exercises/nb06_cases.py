"""Launches of a reader's Triton kernel, right answers for notebook 06's exercise, and the cases it is checked with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch

from workbench.lab.exercise_cases import Case, fixed

EPS = 1e-5
NO_OTHER = "a lane that the mask switches off holds no number, unless you say which: other=0.0"
UNTOUCHED, OVERWRITTEN = "untouched", "overwritten"
BEYOND = "only the first `width` columns are the row's; BLOCK may be larger"


@dataclass(frozen=True)
class Rows:
    """A tensor as a case writes it down: rows of numbers whose beginnings lie ``stride`` numbers apart in memory. What
    lies between them is no number and belongs to nobody."""

    numbers: tuple[tuple[float, ...], ...]
    stride: int
    dtype: str = "float32"

    def __repr__(self) -> str:
        rows = ", ".join(f"[{', '.join(f'{number:.4g}' for number in row)}]" for row in self.numbers)
        return f"{self.dtype} [{rows}], rows {self.stride} numbers apart"

    def tensor(self, device: str) -> torch.Tensor:
        """``[rows, width]``, with a gap of NaN after each row where the stride is larger than the row."""
        values = torch.tensor(self.numbers)
        memory = torch.full((len(values), self.stride), math.nan)
        memory[:, : values.shape[1]] = values
        return memory.to(device, getattr(torch, self.dtype))[:, : values.shape[1]]


def cannot_launch() -> str:
    """Why no Triton kernel runs in this process; empty if one can."""
    from kernels.triton import launch

    return "" if launch.runs_here() else f"{launch.cannot_compile()}, and Python runs without TRITON_INTERPRET=1"


@lru_cache(maxsize=8)  # a kernel made anew is compiled anew
def kernel_of(function: Callable[..., Any]) -> Any:
    """The kernel of a plain function, or of one that has ``@triton.jit`` on it already."""
    import triton
    import triton.language as tl

    plain = getattr(function, "fn", function)
    # What a notebook has imported by then.
    plain.__globals__.setdefault("tl", tl)
    return triton.jit(plain)


def launch_norm(function: Callable[..., Any], x: Any, stream: Any, weight: Any, out: Any, eps: float) -> None:
    """One program a row, for tensors ``[rows, width]`` of whatever strides. In the interpreter lanes without a number
    are NaN, and an address outside of the tensors is an error."""
    import triton

    from kernels.triton.interpreter import faithful

    width = x.shape[1]
    arguments = x, stream, weight, out, x.stride(0), stream.stride(0), width, eps
    try:
        with faithful(check=True):
            kernel_of(function)[(len(x),)](*arguments, BLOCK=triton.next_power_of_2(width))
    except Exception as error:
        # The interpreter wraps what the kernel raised; the cause knows the reader's line.
        if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


def launched(function: Callable[..., Any], x: Rows, stream: Rows, weight: Rows, out: Rows, *rest: Any) -> Any:
    """What the kernel makes of copies of a case's tensors."""
    from kernels.triton.interpreter import interpreting

    if not interpreting() and "NotImplementedError" in getattr(function, "__code__", launched.__code__).co_names:
        function(x, stream, weight, out, *rest)  # no compiler takes a raise; this says who raised it
    device = "cpu" if interpreting() else "cuda"
    tensors = [one.tensor(device) for one in (x, stream, weight, out)]
    launch_norm(function, tensors[0], tensors[1], tensors[2][0], tensors[3], rest[3])
    kept = all(torch.equal(tensors[i], one.tensor(device)) for i, one in ((0, x), (2, weight)))
    return {
        "stream": tensors[1].float().tolist(),
        "out": tensors[3].float().tolist(),
        "gaps": _gaps(tensors[1]),
        "x and weight": UNTOUCHED if kept else OVERWRITTEN,
    }


def _gaps(rows: torch.Tensor) -> str:
    """What became of the memory between the rows of a view."""
    behind = rows.as_strided((len(rows), rows.stride(0) - rows.shape[1]), rows.stride(), rows.shape[1])
    return UNTOUCHED if bool(behind.isnan().all()) else OVERWRITTEN


def defined(x: Rows, stream: Rows, weight: Rows, out: Rows, *rest: Any) -> Any:
    """The definition: `kernels.reference.rms_norm` on float32, rounded where the kernel must."""
    from kernels.reference import rms_norm

    kind = getattr(torch, stream.dtype)
    added = (x.tensor("cpu").float() + stream.tensor("cpu").float()).to(kind)
    normed = rms_norm(added.float(), weight.tensor("cpu")[0].float(), rest[3]).to(kind)
    whole = {"gaps": UNTOUCHED, "x and weight": UNTOUCHED}
    return {"stream": added.float().tolist(), "out": normed.float().tolist(), **whole}


def norm_cases() -> list[Case]:
    draw = Random("add-rms-norm")
    cases = []

    def add(family: str, name: str, rows: int, width: int, help_: str = "", apart: tuple[int, int] = (0, 0),
            dtype: str = "float32", size: float = 1.0, eps: float = EPS) -> None:  # fmt: skip
        def numbers(count: int) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(size * draw.randint(-64, 64) / 32 for _ in range(width)) for _ in range(count))

        x, stream = (Rows(numbers(rows), width + gap, dtype) for gap in apart)
        weight = Rows(tuple(tuple(draw.randint(8, 64) / 32 for _ in range(width)) for _ in range(1)), width, dtype)
        out = Rows(((0.0,) * width,) * rows, width, dtype)
        block = 1 << (width - 1).bit_length()
        arguments = (x, stream, weight, out, x.stride, stream.stride, width, eps, block)
        near = (0.004, 1e-6) if dtype == "bfloat16" else (1e-5, 1e-6)
        cases.append(Case(family, name, fixed(*arguments), defined, *near, help=help_, call=launched))

    one = (Rows(((1.0, 2.0),), 2), Rows(((2.0, 2.0),), 2), Rows(((1.0, 2.0),), 2), Rows(((0.0, 0.0),), 2))
    by_hand = "the stream becomes [3, 4]; the mean of its squares is 12.5"
    cases.append(
        Case("by hand", "[1, 2] + [2, 2]", fixed(*one, 2, 2, 2, 0.0, 2), defined, 1e-5, help=by_hand, call=launched)
    )
    add("random", "3 rows of 8", 3, 8)
    add("random", "2 rows of 16", 2, 16)
    add("ragged", "2 rows of 5 in a block of 8", 2, 5, f"{NO_OTHER}; and {BEYOND}")
    add("ragged", "4 rows of 3 in a block of 4", 4, 3, BEYOND)
    add("rows apart", "x: 4 numbers between rows", 3, 8, "row i of x begins at i × x_stride", (4, 0))
    add("rows apart", "the stream: 3 between rows", 3, 6, "what lies between rows is not yours", (0, 3))
    add("rows apart", "both, by different strides", 2, 5, "x and the stream have strides of their own", (2, 7))
    add("single", "a row of one number", 2, 1, "a mean of one number")
    add("small numbers", "eps counts", 1, 8, "eps is added to the mean, before the root", size=1 / 1024, eps=1e-3)
    add("bfloat16", "2 rows of 48", 2, 48, "sums are made in float32: .to(tl.float32) after loading", dtype="bfloat16")
    return cases
