"""The rungs of attention under the lens: small inputs, how far each rung errs, what each moves, one row step by step.

Where kernels are compiled (on a GPU) nobody can look inside them: what asks for that gives nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from kernels.reference import flash_attention as definition
from kernels.triton import attention_walk
from kernels.triton.flash_attention import flash_attention
from kernels.triton.flash_tiles import Tiles
from kernels.triton.interpreter import faithful, interpreting
from kernels.triton.interpreter.values import as_array
from kernels.triton.naive_attention import naive_attention
from kernels.triton.tiled_attention import tiled_attention
from kernels.triton.traffic import Moved, counting
from kernels.triton.visits import Visit, visiting

RUNGS = {"naive": naive_attention, "tiled": tiled_attention, "flash": flash_attention}
SMALL = Tiles(32, 16, 4, 1)
"""Tiles of 32 rows (16 queries of a group of two heads) and blocks of 16 keys: a picture of 96 tokens has 6 × 6."""


class Inputs(NamedTuple):
    """One sequence, as all rungs take it."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor


class Step(NamedTuple):
    """What one block did to one row; scores in the log2 domain."""

    before: float
    after: float
    factor: float


def attention_inputs(
    num_tokens: int,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Inputs:
    """Random queries, keys and values, the same on every machine."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(num_tokens, heads, head_dim, generator=draw).to(dtype).to(device)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    cu = torch.tensor([0, num_tokens], dtype=torch.int32, device=device)
    return Inputs(q, k, v, cu, cu)


def rung(name: str, inputs: Inputs, window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs one of `RUNGS`, causal, in the faithful interpreter with `SMALL` tiles, or compiled as it is launched."""
    config: dict[str, Any] = {"config": SMALL} if interpreting() else {}
    with faithful():
        return RUNGS[name](*inputs, scale=inputs.q.shape[2] ** -0.5, window=window, **config)


def rung_errors(inputs: Inputs) -> tuple[dict[str, float], float]:
    """The largest error of the definition and of each rung against the definition in float64, and what FlashAttention's
    own rule allows: twice the error of the definition in the same precision, and its last bit twice."""
    scale = inputs.q.shape[2] ** -0.5
    wide, _ = definition(*(x.double() for x in inputs[:3]), *inputs[3:], scale=scale)
    same, _ = definition(*inputs, scale=scale)
    results = {"definition": same, **{name: rung(name, inputs)[0] for name in RUNGS}}
    errors = {name: float((out.double() - wide).abs().max()) for name, out in results.items()}
    return errors, 2 * errors["definition"] + 2 * float(((same + 0.3 - 0.3) - same).abs().max())


@contextmanager
def launches() -> Iterator[list[Moved]]:
    """Within it every interpreted launch adds what it moved; where kernels are compiled the list stays empty."""
    if not interpreting():
        yield []
        return
    with faithful(), counting() as found:
        yield found


def rung_traffic(inputs: Inputs, names: tuple[str, ...] = ("naive", "flash")) -> list[Moved]:
    """What these rungs' kernels really move, launch by launch; the few bytes that say where sequences begin left out.
    Nothing where kernels are compiled."""
    with launches() as found:
        for name in names:
            rung(name, inputs)
    lengths = inputs.cu_q.untyped_storage().nbytes()
    return [one if one.kernel == "_softmax" else one._replace(read=one.read - lengths) for one in found]


def rung_visits(inputs: Inputs, window: int | None = None) -> list[Visit]:
    """Which blocks the tiles of the first KV head visit in `flash`. Nothing where kernels are compiled."""
    if not interpreting():
        return []
    with visiting() as visits:
        rung("flash", inputs, window)
    return [visit for visit in visits if visit.kv_head == 0]


def rung_steps(inputs: Inputs) -> list[Step]:
    """What each block of keys did to the last query's row in `flash`. Nothing where kernels are compiled."""
    if not interpreting():
        return []
    own, found = attention_walk.online_step, []

    def watched(m_i: Any, s: Any, to_log2: Any, masked: Any) -> Any:
        after, weights, factor = own(m_i, s, to_log2, masked)
        found.append(Step(*(float(as_array(one)[-1]) for one in (m_i, after, factor))))
        return after, weights, factor

    attention_walk.online_step = watched
    try:
        rung("flash", inputs)
    finally:
        attention_walk.online_step = own
    return found[: -(-inputs.k.shape[0] // SMALL.block_n)]  # the last tile comes first
