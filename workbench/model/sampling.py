"""Choosing the next token: a function of (logits, sampling parameters, seed, position) and of nothing else.

The random number of a token comes from the request's seed and the token's position, not from a generator that is
drawn from in turn. So neighbours in the batch, chunked prompts and preemptions cannot change what a seed gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

import kernels
from kernels.cpu.build import cannot_run
from kernels.triton import launch
from workbench.attention.table import NEVER_RUN
from workbench.errors import UsageError
from workbench.model import flashinfer_sampling
from workbench.model.penalties import adjust
from workbench.plan import RequestView

_MASK = (1 << 64) - 1
_OWN = {
    "cpu": "our own C++ kernel, without a sort",
    "triton": f"our own Triton kernel, without a sort; flashinfer by name only, for it has {NEVER_RUN}",
}


class Sampler(NamedTuple):
    """Who samples, and why, in words."""

    name: str
    """A maker of `kernels.sample`, or ``flashinfer``."""
    why: str


def chosen_sampler(name: str, device: torch.device) -> Sampler:
    """Who samples for a ``sampling_backend`` that `EngineConfig` has let through.

    ``auto``: our own kernel, in C++ on a CPU with a compiler, in Triton on a GPU; else torch. Raises UsageError for
    one asked for by name that cannot run. Asking may compile a kernel, so only those are asked that count.
    """
    if name == "auto":
        own = "triton" if device.type == "cuda" else "cpu"
        reason = _why_not(own, device)
        return Sampler("reference", f"not {own}: {reason}") if reason else Sampler(own, _OWN[own])
    if name != "torch" and (reason := _why_not(name, device)):
        raise UsageError(f"sampling_backend={name!r} cannot serve this model: {reason}; use 'torch' or 'auto'")
    told = f"sampling_backend={name!r}" + (f"; it has {NEVER_RUN}" if name == "flashinfer" else "")
    return Sampler("reference" if name == "torch" else name, told)


def _why_not(name: str, device: torch.device) -> str:
    if name == "triton":
        return launch.cannot_run(device)
    if name == "flashinfer":
        return flashinfer_sampling.cannot_run(device)
    return f"it runs on CPUs and the model is on {device}" if device.type != "cpu" else cannot_run()


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that looks random: SplitMix64 (Steele, Lea and Flood 2014), once for each argument."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def sample(logits: torch.Tensor, requests: Sequence[RequestView], maker: str = "auto") -> torch.Tensor:
    """The next token of each request: logits ``[num_requests, vocab_size]`` float32 → ids ``[num_requests]`` int64.

    Steps, in the order of transformers' processors: `workbench.model.penalties.adjust`, then the temperature and the
    filters as `kernels.reference.sample` defines them. ``maker``: whose, see `kernels`, or ``flashinfer``.
    """
    params = [request.params for request in requests]
    options = (
        [one.temperature for one in params],
        [one.top_k for one in params],
        [one.top_p for one in params],
        [one.min_p for one in params],
        [0.0 if r.params.greedy else uniform(r.seed, len(r.token_ids)) for r in requests],
    )
    if maker == "flashinfer":
        return flashinfer_sampling.sample(adjust(logits, requests), *options)
    return kernels.sample(adjust(logits, requests), *options, maker=maker)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
