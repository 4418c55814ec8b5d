"""The same bits whatever else is in the batch, and however a prompt is cut into chunks.

Floating-point sums depend on their order, and the fastest order depends on how much there is to add. Three things of a
step could therefore change a request's bits with its neighbours: how keys are split over programs, by which kernel the
queries of a request are served, and by which kernel a matrix product with so many rows is. The first is the backend's
promise (`Candidate.batch_invariant`). The second falls away where every query is a request of its own, as in decoding.
The third our C++ products keep by themselves: they add each row in one order, whatever the number of rows.
(Why answers differ otherwise: He et al. 2025, "Defeating nondeterminism in LLM inference".)
"""

from __future__ import annotations

from itertools import pairwise

import torch

from kernels.cpu.build import cannot_run
from workbench.attention.interface import AttentionBatch
from workbench.errors import UsageError


def require_products(device: torch.device, latent: bool, batch_invariant: bool) -> None:
    """Raises UsageError where matrix products give a row other bits in another batch, and must not.

    ``latent``: whether the model's attention is over latents.
    """
    if batch_invariant and (reason := why_not_products(device.type, latent)):
        raise UsageError(f"batch_invariant=True: {reason}; leave it False")


def why_not_products(device: str, latent: bool) -> str:
    """Why a row's products have other bits in another batch; empty where they have not."""
    if device != "cpu":
        return "a GPU's matrix products go to the vendor's library, which picks a kernel by the number of rows"
    if why := cannot_run():
        return f"our C++ kernels cannot be built here ({why}), and torch's products depend on the number of rows"
    if latent:
        return "torch multiplies queries into latents (MLA), and its products depend on the number of rows"
    return ""


def query_by_query(batch: AttentionBatch) -> AttentionBatch:
    """Each query a request of its own, which sees its keys and those before it.

    Prompts are then attended as slowly as answers: that is the price.
    """
    counts = [end - begin for begin, end in pairwise(batch.query_start)]
    pairs = list(zip(counts, batch.seq_lens, strict=True))
    owners = [b for b, count in enumerate(counts) for _ in range(count)]
    lengths = [n - count + i + 1 for count, n in pairs for i in range(count)]
    starts, device = list(range(len(owners) + 1)), batch.block_tables.device
    return AttentionBatch(
        starts,
        lengths,
        batch.block_tables[torch.tensor(owners, device=device)],
        batch.block_size,
        batch.token_bytes,
        starts=torch.tensor(starts, dtype=torch.int32, device=device),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
    )
