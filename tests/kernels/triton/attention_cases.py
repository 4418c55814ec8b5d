"""Batches of attention whose tensors lie amid NaN, and what a result of low precision may be off by."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from kernels import reference
from kernels.triton.flash_attention import flash_attention
from kernels.triton.naive_attention import naive_attention
from kernels.triton.tiled_attention import tiled_attention

NAN = float("nan")
RUNGS = {"naive": naive_attention, "tiled": tiled_attention, "flash": flash_attention}
RMS = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
"""Of the difference from the exact result, relative to the exact result's: some units of the type's last place."""


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
        """FlashAttention's own rule: at most twice the error that the definition makes in the same precision, beside
        what rounding the exact result costs; and a bound on the root of the mean square."""
        exact, exact_lse = self.reference(torch.float64)
        same, same_lse = self.reference(self.dtype)
        rounded = exact.to(self.dtype)
        slack = 2 * float((rounded + 0.3 - 0.3 - rounded).abs().max()) if rounded.numel() else 0.0
        # tanh made of exp is exact to one unit of 1, not of its own size, and is then multiplied with the cap.
        slack_lse = 2e-6 + (self.softcap or 0.0) * 2.0**-22
        slack += (self.softcap or 0.0) * 2.0**-22 * 4
        assert_within(out, exact, same, slack)
        assert_within(lse, exact_lse, same_lse, slack_lse * 4)
        if exact.numel():
            rms = (out.double() - exact).square().mean().sqrt()
            assert rms <= RMS[self.dtype] * exact.square().mean().sqrt() + slack / 10, f"root mean square {rms:.2e}"
        hidden = exact_lse == float("-inf")
        assert torch.equal(lse == float("-inf"), hidden)
        assert not out[hidden].any()


def assert_within(got: torch.Tensor, exact: torch.Tensor, same: torch.Tensor, slack: float) -> None:
    def error(x: torch.Tensor) -> float:
        difference = (x.double() - exact)[exact.isfinite()]
        return float(difference.abs().max()) if difference.numel() else 0.0

    assert got.shape == exact.shape
    assert not got.isnan().any()
    assert error(got) <= 2 * error(same) + slack, f"{error(got):.2e}; in the same precision {error(same):.2e}"
