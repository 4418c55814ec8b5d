"""Batches of attention whose tensors lie amid NaN, and what a result may be off by."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from kernels import reference
from kernels.triton.flash_attention import flash_attention
from kernels.triton.naive_attention import naive_attention
from kernels.triton.tiled_attention import tiled_attention
from tests.kernels.triton.rules import agrees

NAN = float("nan")
RUNGS = {"naive": naive_attention, "tiled": tiled_attention, "flash": flash_attention}


@dataclass
class Case:
    """``lengths``: (queries, keys) of each sequence; ``group``: query heads of a KV head."""

    lengths: list[tuple[int, int]]
    head_dim: int = 64
    group: int = 1
    kv_heads: int = 1
    dtype: torch.dtype = torch.float32
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    layout: str = "plain"
    seed: int = 0
    device: str = "cpu"
    spread: float = 1.0
    """Standard deviation of queries."""
    inputs: tuple[torch.Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.draw = torch.Generator().manual_seed(self.seed)
        q_lens, k_lens = zip(*self.lengths, strict=True)
        heads = self.kv_heads * self.group
        q = self._amid_nan(sum(q_lens), heads, self.spread)
        k, v = (self._amid_nan(sum(k_lens), self.kv_heads, 1.0) for _ in range(2))
        self.inputs = (q, k, v, self._boundaries(q_lens), self._boundaries(k_lens))
        self.sink = torch.randn(heads, generator=self.draw).to(self.device) if self.sinks else None

    def _boundaries(self, lengths: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self.device)

    def _amid_nan(self, tokens: int, heads: int, spread: float) -> torch.Tensor:
        """``[tokens, heads, head_dim]``, a view of a larger tensor that is NaN everywhere else."""
        drawn = torch.randn(tokens, heads, self.head_dim, generator=self.draw) * spread

        def full(*shape: int) -> torch.Tensor:
            return torch.full(shape, NAN, dtype=self.dtype, device=self.device)

        if self.layout == "plain":
            view = full(tokens + 4, heads, self.head_dim)[2:-2]
        elif self.layout == "heads first":
            view = full(heads + 2, tokens + 2, self.head_dim)[1:-1, 1:-1].transpose(0, 1)
        else:  # a slice in every dimension, whose rows still begin at multiples of 16 bytes
            view = full(tokens + 2, heads + 3, self.head_dim + 16)[1:-1, 2:-1, 8:-8]
        return view.copy_(drawn)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "scale": self.head_dim**-0.5,
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sink,
        }

    def run(self, rung: str = "flash", **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return RUNGS[rung](*self.inputs, **self.options, **more)

    def reference(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """By the definition, computed in ``dtype``."""
        q, k, v, *boundaries = self.inputs
        return reference.flash_attention(q.to(dtype), k.to(dtype), v.to(dtype), *boundaries, **self.options)

    def check(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """The two-fold rule (`rules.agrees`) for out and for lse; queries that see nothing have 0 and −inf exactly."""
        exact, exact_lse = self.reference(torch.float64)
        same, same_lse = self.reference(self.dtype)
        hidden = exact_lse == float("-inf")
        assert torch.equal(lse == float("-inf"), hidden) and not out[hidden].any()
        # tanh made of exp is right to a unit of 1, not of its own size, and the cap multiplies that: seen in float32.
        slack = (self.softcap or 0.0) * 2.0**-21
        if slack and self.dtype == torch.float32:
            torch.testing.assert_close(out.double(), exact, atol=4 * slack, rtol=1e-5)
        else:
            agrees(out, same, exact)
        error, theirs = ((x.double() - exact_lse)[~hidden].abs() for x in (lse, same_lse))
        if error.numel():
            assert error.max() <= 2 * theirs.max() + 2e-6 * (1 + exact_lse[~hidden].abs().max()) + slack
