"""Are two answers the same? A flip is excused only where the choice was as good as equal, and it is counted.

For a greedy token that is where the two best logits lie within TIE; for a drawn one, where its random number lies
within DRAW_TIE of the border between the two tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from workbench.model.sampling import uniform
from workbench.sampling_params import SamplingParams

TIE = 1e-4
DRAW_TIE = 1e-5


class Drawn(NamedTuple):
    """How an answer's tokens were drawn, without filters."""

    temperature: float
    seed: int


@dataclass
class Comparison:
    """Counts over many answers: tokens compared, and flips excused by a tie, each told in words."""

    tokens: int = 0
    ties: list[str] = field(default_factory=list)

    def compare(
        self,
        name: str,
        prompt: Sequence[int],
        expected: Sequence[int],
        got: Sequence[int],
        logits_after: Callable[[list[int]], torch.Tensor],
        drawn: Drawn | None = None,
    ) -> None:
        """Raises AssertionError at the first token that differs without excuse. After an excused one the answers go
        their own ways, so nothing behind it is compared. ``logits_after``: scores of the next token, ``[vocab]``."""
        for i, (want, have) in enumerate(zip(expected, got, strict=False)):
            if want == have:
                self.tokens += 1
                continue
            scores = logits_after([*prompt, *expected[:i]]).double()
            if drawn is not None:
                apart = from_border(scores, drawn, len(prompt) + i, want, have)
                told = f"and its number lies {apart:.1e} from the border between them"
                assert apart < DRAW_TIE, f"{name}: output token {i} is {have} instead of {want}, {told}"
                self.ties.append(f"{name}, token {i}: {want} or {have}, drawn {apart:.1e} from the border")
                return
            best = scores.topk(2).values
            gap = (best[0] - best[1]).item()
            # A tie excuses a swap of the two that tie, nothing else.
            tied = gap < TIE and {want, have} <= set((scores > best[0] - TIE).nonzero().flatten().tolist())
            assert tied, (
                f"{name}: output token {i} is {have} instead of {want}, and the best two logits differ by {gap:.3g}"
            )
            self.ties.append(f"{name}, token {i}: {want} or {have}, {gap:.1e} apart")
            return
        assert len(expected) == len(got), f"{name}: {len(got)} tokens instead of {len(expected)}"

    def figures(self) -> str:
        told = "".join(f"; {tie}" for tie in self.ties)
        return f"{self.tokens:,} tokens equal, {len(self.ties)} flips excused by a tie within {TIE:g}{told}"


def from_border(scores: torch.Tensor, drawn: Drawn, position: int, one: int, other: int) -> float:
    """The farthest of the borders that the drawn number would have to cross to give the other token."""
    cumulative = (scores / drawn.temperature).softmax(-1).cumsum(-1)
    low, high = sorted((one, other))
    return float((cumulative[low:high] - uniform(drawn.seed, position)).abs().max())


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def seeded(max_tokens: int, seed: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=seed, max_tokens=max_tokens, ignore_eos=True, **options)
