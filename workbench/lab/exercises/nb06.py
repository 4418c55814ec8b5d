"""Notebook 06: a first Triton kernel, norm and residual in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import UsageError
from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercises import nb06_cases as cases

if TYPE_CHECKING:
    import triton.language as tl

# The solution. Its text, without what stands in the gap, is the skeleton in the notebook; the check makes it a kernel.


def add_rms_norm(
    x_ptr: tl.tensor,
    stream_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: int,
    stream_stride: int,
    width: int,
    eps: float,
    BLOCK: tl.constexpr,
) -> None:
    """Adds a row of x to its row of the stream, in place, and writes the sum's RMSNorm to its row of out.

    x_ptr, stream_ptr, out_ptr: [rows, width], of which program i takes row i. x_stride, stream_stride: from the
    beginning of a row to that of the next, in numbers; in out it is width. weight_ptr: [width]. BLOCK: a power of two,
    at least width. The norm of a row s is s / sqrt(mean(s²) + eps) · weight; sums in float32.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    # your turn: load both rows, add, store the stream; sum the squares; store the norm
    inside = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    stream_ptr += row * stream_stride + column
    stream = tl.load(stream_ptr, mask=inside, other=0.0)
    stream = (x + stream.to(tl.float32)).to(stream.dtype)
    tl.store(stream_ptr, stream, mask=inside)
    s = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(s * s) / width + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = s * scale * weight
    tl.store(out_ptr + row * width + column, normed.to(out_ptr.dtype.element_ty), mask=inside)
    # end


# Its place in the engine.


def _as_norm(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `kernels.rms_norm`: wherever a residual is added, the reader's kernel adds it. The interpreter takes a while,
    so this is for a few tokens."""

    def rms_norm(
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        residual: torch.Tensor | None = None,
        *,
        maker: str = "auto",
    ) -> torch.Tensor:
        from kernels.cpu.native import recorded

        if residual is None:
            return original(x, weight, eps, maker=maker)
        if recorded() is not None:
            raise UsageError("your kernel cannot be recorded: use an LLM that was opened with enforce_eager=True")
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        function(x, residual, weight, out, eps)
        return out

    return rms_norm


EXERCISES = (
    Exercise(
        notebook="06",
        id="add-rms-norm",
        title="Residual and RMSNorm in one kernel",
        difficulty=2,
        minutes=30,
        statement="Write your first Triton kernel. Program i adds row i of x to row i of the stream, in place, and "
        "writes the sum's RMSNorm to row i of out: with x = [1, 2], stream = [2, 2], weight = [1, 2] and eps = 0 the "
        "stream becomes [3, 4], and out [3, 8] / √12.5. Each number is read once and written once. A row may be "
        "narrower than BLOCK, and rows of x and of the stream may lie farther apart than they are wide. "
        "Write no `@triton.jit`: the check puts it on and launches one program a row.",
        function=add_rms_norm,
        reference=cases.defined,
        examples=(),
        cases=cases.norm_cases,
        hints=(
            "Which columns of a block of BLOCK belong to the row, and what must the others add to a sum?",
            "A load takes an address for each column, base + row × stride + column, a mask, and what stands where the "
            "mask is false. The sum of squares is one number a program, `tl.sum`; `tl.rsqrt` is 1 / √.",
            "inside = column < width. Load x and the stream with mask=inside and other=0.0, x as .to(tl.float32); add, "
            "round to stream.dtype, store with the mask. Then, in float32: rsqrt of the sum of squares over width, "
            "plus eps; times that; times the weight. Store at out_ptr + row * width + column in its own dtype, "
            "out_ptr.dtype.element_ty, with the mask.",
        ),
        mutants=(
            Mutant("x without other", "x_stride + column, mask=inside, other=0.0)", "x_stride + column, mask=inside)"),
            Mutant("the stream without other", "(stream_ptr, mask=inside, other=0.0)", "(stream_ptr, mask=inside)"),
            Mutant("the whole block", "column < width", "column < BLOCK"),
            Mutant("the mean of the block", "/ width + eps", "/ BLOCK + eps"),
            Mutant("a sum for a mean", " / width + eps", " + eps"),
            Mutant("eps forgotten", " / width + eps)", " / width)"),
            Mutant(
                "eps under no root", "tl.rsqrt(tl.sum(s * s) / width + eps)", "tl.rsqrt(tl.sum(s * s) / width) + eps"
            ),
            Mutant("the stream not written", "    tl.store(stream_ptr, stream, mask=inside)\n", ""),
            Mutant("more than the row written", "(stream_ptr, stream, mask=inside)", "(stream_ptr, stream)"),
            Mutant(
                "x written over",
                "    s = stream.to(tl.float32)\n",
                "    s = stream.to(tl.float32)\n    tl.store(x_ptr + row * x_stride + column, s, mask=inside)\n",
            ),
            Mutant("x normed, not the sum", "s = stream.to(tl.float32)", "s = x"),
            Mutant("one stride for both", "row * stream_stride", "row * x_stride"),
            Mutant("rows of x side by side", "row * x_stride", "row * width"),
            Mutant("the weight forgotten", "s * scale * weight", "s * scale"),
            Mutant("halfs summed", "s = stream.to(tl.float32)", "s = stream"),
        ),
        swap=Swap("kernels", "", "rms_norm", _as_norm, cases.launch_norm),
        needs=cases.cannot_launch,
    ),
)
