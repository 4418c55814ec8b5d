"""A runner that keeps the hidden states after each layer, for comparing two models layer by layer.

Weights cannot be compared where an algorithm changed what stands before them too (AWQ, rotations); what layers hand on
can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from workbench.model.batch import Step
from workbench.model.decoder import Layer
from workbench.model.runner import ModelRunner


class Watched:
    """Token ids to logits (`ModelRunner.logits`); ``hidden`` is what the last call's layers handed on."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.hidden: list[Tensor] = []
        """Of each layer ``[tokens, hidden_size]``: the sum that the next one reads."""

    def __call__(self, ids: list[int]) -> Tensor:
        decoder, self.hidden = self._runner.decoder, []
        through = decoder.through

        def watching(layer: Layer, stream: Tensor, joins: Tensor | None, step: Step, cache: Tensor) -> Tensor:
            made = through(layer, stream, joins, step, cache)
            self.hidden.append((stream + made).float())
            return made

        decoder.through = watching  # type: ignore[method-assign]
        try:
            return self._runner.logits(ids)
        finally:
            del decoder.through


def noise_of(found: Sequence[Tensor], exact: Sequence[Tensor], rows: slice) -> tuple[float, ...] | None:
    """Of each layer Σ|found − exact|² / |exact|² over the tokens of ``rows``; None for other depths or widths.

    A share for each token, as the first token's hidden states are a hundred times larger than all others.
    """
    if [h.shape for h in found] != [h.shape for h in exact]:
        return None
    pairs = ((one[rows].double(), other[rows].double()) for one, other in zip(found, exact, strict=True))
    return tuple(float(((a - b).square().sum(-1) / b.square().sum(-1)).sum()) for a, b in pairs)


def snr_db(noise: float, tokens: int) -> float | None:
    """Signal to noise in decibels, of a sum as `noise_of` has it; None where there is no noise."""
    return -10 * math.log10(noise / tokens) if noise else None
