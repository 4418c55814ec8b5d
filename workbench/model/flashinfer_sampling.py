"""FlashInfer's filters (`top_k_renorm_probs`, `top_p_renorm_probs`: no sort) before our own draw.

Never yet run on hardware: tests hold its calls against a stand-in. FlashInfer's own draw takes its random numbers from
a generator; ours is a function of (seed, position), so the draw stays here. Filtered rows are summed up in order of the
vocabulary and not of likelihood: the same distribution as the other backends', another token for the same seed.
"""

from __future__ import annotations

from importlib import import_module

import torch

from kernels.reference.sampling import draw
from workbench.attention.choose import absence
from workbench.attention.table import CANDIDATES


def cannot_run(device: torch.device) -> str:
    """Why it cannot sample there; empty if it can."""
    if device.type != "cuda":
        return f"it runs on GPUs and the model is on {device}"
    return absence(CANDIDATES["flashinfer"])


def sample(
    logits: torch.Tensor,
    temperature: list[float],
    top_k: list[int],
    top_p: list[float],
    min_p: list[float],
    u: list[float],
) -> torch.Tensor:
    """As `kernels.reference.sample`, but for the order in which filtered rows are summed up."""
    library, size = import_module("flashinfer.sampling"), logits.shape[-1]
    chosen = logits.argmax(-1)
    drawn = [row for row, heat in enumerate(temperature) if heat != 0]
    if not drawn:
        return chosen
    index = torch.tensor(drawn, device=logits.device)

    def column(numbers: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([numbers[row] for row in drawn], dtype=dtype, device=logits.device)

    rows = logits[index]
    # From the largest down, so that no temperature, however small, divides anything into infinity.
    scaled = (rows - rows.amax(-1, keepdim=True)) / column(temperature, torch.float32)[:, None]
    kept = scaled.softmax(-1)
    if any(0 < top_k[row] < size for row in drawn):
        most = [min(k, size) if k > 0 else size for k in top_k]
        kept = library.top_k_renorm_probs(kept, column(most, torch.int32))
    if any(top_p[row] < 1 for row in drawn):
        kept = library.top_p_renorm_probs(kept, column(top_p, torch.float32))
    kept = kept.masked_fill(kept < column(min_p, torch.float32)[:, None] * kept.amax(-1, keepdim=True), 0.0)
    chosen[index] = draw(kept.double(), column(u, torch.float64)[:, None])
    return chosen
