"""The roofline: how long a step must take at least, from what it computes and moves and from what the machine can do.

A machine computes at most so many FLOPs and reads at most so many bytes a second; a step needs some of both, so it
lasts at least as long as the slower of the two (Williams, Waterman and Patterson 2009). What it leaves out (launching
kernels, Python, caches that hold part of the data) shows as the gap between the prediction and a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.checks import as_whole, shown
from workbench.errors import UsageError
from workbench.measure.ceilings import Hardware
from workbench.model.bits import bits_of
from workbench.model.config import ModelConfig
from workbench.model.cost import Chunk, Share, StepCost, activations_moved, weights_read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Prediction", "Share", "Work", "plot", "predict", "ridge", "step_work", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes (FLOPs) and moves between memory and processor (bytes)."""

    flops: int
    weight_bytes: int
    kv_bytes: int
    """Visible keys and values read, new ones written."""
    activation_bytes: int
    """In- and outputs of the matrix products."""

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes


@dataclass(frozen=True, slots=True)
class Prediction:
    """The least time of a step: the longer of its two halves, which at best overlap entirely."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        """``memory`` or ``compute``: what the step waits for."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def step_work(
    model_config: ModelConfig,
    *,
    num_tokens: int,
    context: int,
    num_requests: int = 1,
    dtype: str | float,
    kv_dtype: str | float | None = None,
) -> Work:
    """A step of ``num_requests`` requests alike, each sampling one token.

    Each computes its last ``num_tokens`` tokens and then has ``context``, these included. Decode of a batch of 8 at 500
    tokens: ``num_tokens=1, context=500, num_requests=8``. A whole prompt of 500: ``num_tokens=500, context=500``. For a
    step that mixes them, and for dtypes, see `work_of`. Raises UsageError for counts that do not fit each other.
    """
    counts = [as_whole(count) for count in (num_tokens, context, num_requests)]
    if None in counts or num_tokens < 1 or num_requests < 1 or context < num_tokens:
        given = f"num_tokens={shown(num_tokens)}, context={shown(context)}, num_requests={shown(num_requests)}"
        raise UsageError(
            f"{given}: each is a whole number of at least 1, and context counts the new tokens too, so it is at least "
            "num_tokens"
        )
    return work_of(model_config, [Share(context - num_tokens, num_tokens)] * num_requests, dtype, kv_dtype)


def work_of(
    model_config: ModelConfig, shares: Sequence[Chunk], dtype: str | float, kv_dtype: str | float | None = None
) -> Work:
    """The work of one step, for any mix of requests: `Share`s or the ``scheduled`` of a plan.

    ``dtype`` of the weights and ``kv_dtype`` of keys and values: names such as ``bfloat16`` or ``q4_k``, or bits per
    number. Activations, and keys and values unless told otherwise, are as wide as the weights and at least 16 bits.
    Raises UsageError for a dtype that is not known and for models whose reads depend on the tokens (experts).
    """
    wide = max(bits_of(dtype), 16.0)
    kv_bytes = model_config.kv_bytes_per_token(wide if kv_dtype is None else kv_dtype)
    cost = StepCost(model_config, 0, kv_bytes)
    sampled = sum(share.samples for share in shares)
    moved = activations_moved(model_config, sum(share.num_tokens for share in shares), sampled)
    return Work(
        flops=cost.flops(shares),
        weight_bytes=math.ceil(weights_read(model_config, sampled > 0) * bits_of(dtype) / 8),
        kv_bytes=cost.kv_bytes(shares),
        activation_bytes=math.ceil(moved * wide / 8),
    )


def predict(work: Work, hardware: Hardware, dtype: str) -> Prediction:
    """The least time that ``hardware`` needs when it computes in ``dtype``. Raises UsageError if that has no rate."""
    return Prediction(work.flops / _rate(hardware, dtype), work.bytes / hardware.read_bandwidth)


def ridge(hardware: Hardware, dtype: str) -> float:
    """FLOPs for each byte at which both halves take equally long: below it a step waits for memory."""
    return _rate(hardware, dtype) / hardware.read_bandwidth


def plot(hardware: Hardware, dtype: str, points: Mapping[str, tuple[float, float]] | None = None) -> Figure:
    """The roofline of ``hardware`` with measured ``points``: label → (FLOPs per byte, FLOP/s), both above 0.

    The figure brings its own white ground and dark ink, so it reads in a light and in a dark theme. Labels should keep
    to Latin letters: matplotlib's own fonts have no Hangul. Raises UsageError for a point that has no place on it.
    """
    points = points or {}
    for label, (intensity, rate) in points.items():
        if not (intensity > 0 and rate > 0 and math.isfinite(intensity * rate)):
            raise UsageError(f"{label!r} lies at ({intensity}, {rate}): both must be above 0 and finite")
    from matplotlib import pyplot, style

    peak, corner = _rate(hardware, dtype), ridge(hardware, dtype)
    left = min([corner / 100, *(intensity / 2 for intensity, _ in points.values())])
    right = max([corner * 100, *(intensity * 2 for intensity, _ in points.values())])
    with style.context("default"):
        figure, axes = pyplot.subplots(figsize=(7, 4.2), facecolor="white", layout="constrained")
        axes.loglog(
            [left, corner, right], [left * hardware.read_bandwidth / 1e9, peak / 1e9, peak / 1e9], color="black"
        )
        axes.axvline(corner, color="black", linestyle=":", linewidth=1)
        axes.annotate(
            f"ridge: {corner:.3g} FLOP/byte", (corner, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
        for number, (label, (intensity, rate)) in enumerate(points.items()):
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(intensity, rate / 1e9, marker, color="#0072b2", markersize=8, linestyle="none", label=label)
        if points:
            axes.legend(loc="upper left", fontsize=9)  # above the roof, where no point can lie
        axes.set_xlim(left, right)
        axes.set_xlabel("arithmetic intensity (FLOP per byte)")
        axes.set_ylabel("rate (GFLOP/s)")
        axes.set_title(
            f"{hardware.name}: {hardware.read_bandwidth / 1e9:.3g} GB/s, {peak / 1e9:.4g} GFLOP/s in {_name(dtype)}",
            fontsize=10,
        )
        axes.grid(True, which="major", alpha=0.3)
        # Closed, so that a notebook shows it once, where it is returned, and not again at the cell's end.
        pyplot.close(figure)
    return figure


_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def _name(dtype: str) -> str:
    return str(dtype).removeprefix("torch.")


def _rate(hardware: Hardware, dtype: str) -> float:
    name = _name(dtype)
    if name not in hardware.matmul_flops:
        known = ", ".join(hardware.matmul_flops)
        raise UsageError(f"no rate of {dtype!r} was measured on {hardware.name}; there are {known}")
    return hardware.matmul_flops[name]
