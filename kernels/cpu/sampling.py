"""The choice of tokens in C++; see `sampling.cpp` for how and `kernels.reference.sample` for what."""

from __future__ import annotations

from array import array

import torch

from kernels.cpu import native
from kernels.cpu.build import cannot_run


def refusal(logits: torch.Tensor) -> str:
    """Why this kernel cannot choose from such logits; empty if it can."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return f"the logits are {logits.dtype} on {logits.device}, and it takes torch.float32 on a CPU"
    if logits.dim() != 2 or logits.shape[1] == 0:
        return f"logits of shape {list(logits.shape)} are not rows of a vocabulary"
    if logits.stride(1) != 1 and logits.shape[1] > 1:
        return "the logits of a row do not lie side by side"
    return ""


def suits(logits: torch.Tensor) -> bool:
    """Whether it can choose from these logits here."""
    return not refusal(logits) and not cannot_run()


def sample(
    logits: torch.Tensor,
    temperature: list[float] | torch.Tensor,
    top_k: list[int] | torch.Tensor,
    top_p: list[float] | torch.Tensor,
    min_p: list[float] | torch.Tensor,
    u: list[float] | torch.Tensor,
) -> torch.Tensor:
    """As `kernels.reference.sample`. On a tape, tensors are read anew each time it runs; lists stay as they were.

    Raises ValueError for logits (`refusal`) or options it cannot take and CannotBuild where there is no compiler.
    """
    if reason := refusal(logits):
        raise ValueError(f"sample on a CPU: {reason}; use maker='reference'")
    rows, vocab_size = logits.shape
    options = [
        _in_place("temperature", temperature, rows, torch.float64),
        _in_place("top_k", top_k, rows, torch.int64),
        _in_place("top_p", top_p, rows, torch.float64),
        _in_place("min_p", min_p, rows, torch.float64),
        _in_place("u", u, rows, torch.float64),
    ]
    native.hold(options)
    ids = native.empty("sample", (rows,), torch.int64)
    state = native.empty("sample_state", (rows, native.function("sample_state", "i", "l")(vocab_size)), torch.uint8)
    addresses = [one.data_ptr() if isinstance(one, torch.Tensor) else one.buffer_info()[0] for one in options]
    native.call("sample", "sliippppppp", logits, logits.stride(0), rows, vocab_size, *addresses, state, ids)
    return ids


def _in_place(
    name: str, numbers: list[float] | torch.Tensor, rows: int, dtype: torch.dtype
) -> torch.Tensor | array[float] | array[int]:
    """One number for each row, side by side in memory: a tensor as it is, a list's numbers in an array."""
    if not isinstance(numbers, torch.Tensor):
        # Made in a tenth of the time that a tensor takes.
        found: array[float] | array[int] = array("q", numbers) if dtype == torch.int64 else array("d", numbers)
        if len(found) != rows:
            raise ValueError(f"sample on a CPU: {len(found)} numbers as {name} for {rows} rows of logits")
        return found
    if numbers.shape != (rows,) or numbers.dtype != dtype or not numbers.is_contiguous():
        raise ValueError(
            f"sample on a CPU: {name} is {numbers.dtype} of shape {list(numbers.shape)}, and it takes {rows} numbers "
            f"of {dtype} side by side"
        )
    return numbers
