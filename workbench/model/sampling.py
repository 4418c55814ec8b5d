"""Choosing the next token: a function of (logits, sampling parameters, seed, position) and of nothing else.

The random number of a token comes from the request's seed and the token's position, not from a generator that is
drawn from in turn. So neighbours in the batch, chunked prompts and preemptions cannot change what a seed gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import kernels
from kernels.cpu.build import cannot_run
from kernels.triton import launch
from workbench.errors import UsageError
from workbench.model.penalties import adjust
from workbench.plan import RequestView

_MASK = (1 << 64) - 1


def sampling_maker(name: str, device: torch.device) -> str:
    """Which maker of `kernels.sample` a ``sampling_backend`` that `EngineConfig` has let through means.

    ``auto``: our own kernel, in C++ on a CPU with a compiler, in Triton on a GPU; else torch. Raises UsageError for
    ``cpu`` and ``triton`` where they cannot run.
    """
    if name == "torch":
        return "reference"
    if name == "triton" or (name == "auto" and device.type == "cuda"):
        reason = launch.cannot_run(device)
        if name == "triton" and reason:
            raise UsageError(f"sampling_backend='triton' cannot serve this model: {reason}; use 'torch' or 'auto'")
        return "reference" if reason else "triton"
    # Asking may compile the kernel, so it is asked only where the answer counts.
    reason = f"it runs on CPUs and the model is on {device}" if device.type != "cpu" else cannot_run()
    if name == "cpu" and reason:
        raise UsageError(f"sampling_backend='cpu' cannot serve this model: {reason}; use 'torch' or 'auto'")
    return "reference" if reason else "cpu"


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that looks random: SplitMix64 (Steele, Lea and Flood 2014), once for each argument."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def sample(logits: torch.Tensor, requests: Sequence[RequestView], maker: str = "auto") -> torch.Tensor:
    """The next token of each request: logits ``[num_requests, vocab_size]`` float32 → ids ``[num_requests]`` int64.

    Steps, in the order of transformers' processors: `workbench.model.penalties.adjust`, then the temperature and the
    filters as `kernels.reference.sample` defines them. ``maker``: whose, see `kernels`.
    """
    params = [request.params for request in requests]
    return kernels.sample(
        adjust(logits, requests),
        [one.temperature for one in params],
        [one.top_k for one in params],
        [one.top_p for one in params],
        [one.min_p for one in params],
        [0.0 if r.params.greedy else uniform(r.seed, len(r.token_ids)) for r in requests],
        maker=maker,
    )


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
