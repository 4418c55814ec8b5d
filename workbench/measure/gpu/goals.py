"""What a run should reach on a card, beside what was measured. No torch.

Goals in TFLOP/s belong to one card and are applied to no other; goals in per cent of what this card was measured to
reach apply to all.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.measure.gpu.summary import OURS, Told, rows_of, values, with_rates


class Goal(NamedTuple):
    name: str
    """Of a value of `workbench.measure.gpu.summary.values`."""
    least: float
    unit: str
    beside: str
    """What others have published."""


FULL, CAUSAL = "FlashAttention-2 on an H100: 370", "FlashAttention-2 on an H100: 335"
CARDS = {
    "H200": (
        *(Goal(f"prefill d128 {n}: {OURS}", 450, "TFLOP/s", FULL) for n in (8192, 16384)),
        *(Goal(f"prefill d128 {n} causal: {OURS}", 380, "TFLOP/s", CAUSAL) for n in (8192, 16384)),
    ),
}
"""By what the card's name contains."""
COPY_GOAL = 80.0
"""Per cent of the copy bandwidth that decode and fused operations shall reach."""
NOT_BY_COPY = ("sample", "matmul", "w4a16")
"""Sampling reads its logits more than once, and products are compared with cuBLAS; those with 4-bit weights read so
little of a layer that starting counts."""
OVERHEAD_GOAL = 10.0
"""Per cent of a step that the engine may take beside the model, with graphs at a batch of 32."""


def goals(sections: list[Told], device: str | None) -> list[Told]:
    """``{name, wanted, found, unit, reached, beside}``; found and reached are None where nothing was measured."""
    named, told = values(sections), []
    for goal in of_card(device):
        found = named[goal.name].value if goal.name in named else None
        reached = None if found is None else found >= goal.least
        told.append(_goal(goal.name, f"≥ {goal.least:g}", found, goal.unit, reached, goal.beside))
    for row in rows_of(with_rates(sections), "percent_of_copy"):
        bound = row["contender"] == OURS and row["flops"] <= 100 * row["bytes"]
        if bound and not row["case"].startswith(NOT_BY_COPY):
            share = row["percent_of_copy"]
            told.append(_goal(row["case"], f"≥ {COPY_GOAL:g}", share, "% of copy", share >= COPY_GOAL))
    for row in rows_of(sections, "concurrency"):
        if row["graphs"] and row["concurrency"] == 32:
            spent = 100 * (1 - row["forward_share"])
            told.append(_goal(f"{row['model']} × 32: outside the model", f"< {OVERHEAD_GOAL:g}", spent, "% of the step",
                              spent < OVERHEAD_GOAL))  # fmt: skip
    return told


def of_card(device: str | None) -> tuple[Goal, ...]:
    """Goals that only this card has; most have none."""
    return next((found for card, found in CARDS.items() if card in (device or "")), ())


def _goal(name: str, wanted: str, found: float | None, unit: str, reached: bool | None, beside: str = "") -> Told:
    return {"name": name, "wanted": wanted, "found": found, "unit": unit, "reached": reached, "beside": beside}
