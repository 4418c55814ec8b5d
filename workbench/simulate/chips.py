"""Chips by name: what their data sheets promise, and how much of it a serving engine gets.

Rates are dense (no 2:4 sparsity), with float32 accumulation, float32 without TF32; bandwidth and memory of one chip.

- a100-80: NVIDIA A100 80GB SXM data sheet. h100: H100 SXM5 data sheet (it prints twice the rates, with sparsity).
- h200: H200 SXM data sheet. b200: one of the eight of an HGX B200, from its data sheet.
- l4: L4 data sheet. rtx4090: NVIDIA Ada GPU Architecture white paper, appendix A.
- Host links: PCIe 4.0 ×16 (a100-80, l4, rtx4090) and 5.0 ×16 (the others), half of the two-way figure.

Nobody reaches a data sheet's rates. What is assumed instead, for all GPUs alike, and what it leans on:

- 70 % of the arithmetic: an H200 multiplies 8192 × 8192 matrices in bfloat16 at 769 to 798 of 990 TFLOP/s, and
  FlashAttention-3 reaches 740 of 989 at best (Shah et al. 2024); smaller products and the rest of a layer get less.
- 80 % of the bandwidth: an H200 copies at 4.3 of 4.8 TB/s; gpt-fast decodes at 1.4 of 2.0 TB/s on an A100.
- 1 ms for a step (scheduling, preparing, launching a captured step, sampling) and 5 µs for each request in it.

``this-cpu`` is this machine: ceilings that `workbench info hardware` measured, efficiencies of a calibration if there
was one (``workbench bench steps --keep``).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.errors import UsageError, WorkbenchError
from workbench.measure.ceilings import Hardware, kept_cpu

THIS_CPU, THIS_GPU = "this-cpu", "this-gpu"
PCIE_4 = 32e9
"""Bytes per second one way through PCIe 4.0 ×16."""
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of its ceilings a chip gives, and what a step costs besides."""

    compute: float = 0.70
    """Share of the peak that matrix products and attention reach."""
    memory: float = 0.80
    """Share of the bandwidth."""
    overlap: float = 1.0
    """Share of the shorter of reading and computing that goes on beside the longer: 1 is the roofline, with 0 a kernel
    first reads and then computes."""
    step_seconds: float = 1e-3
    """Of every step, however little is in it."""
    request_seconds: float = 5e-6
    """Of each request in a step."""

    def __post_init__(self) -> None:
        for name in ("compute", "memory"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name} efficiency {value} must be a finite number above 0")
        if not 0 <= self.overlap <= 1:
            raise UsageError(f"overlap={self.overlap} must be a share: at least 0, at most 1")
        for name in ("step_seconds", "request_seconds"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"{name}={value} must be a finite number of seconds of at least 0")


@dataclass(frozen=True, slots=True)
class Chip:
    """What a cost model must know of a device."""

    name: str
    memory_bytes: int
    bandwidth: float
    """Bytes per second between memory and processor."""
    flops: dict[str, float]
    """FLOP/s (for integers, operations) by dtype of the operands."""
    host_bandwidth: float
    """Bytes per second one way between the chip and the host's memory."""
    source: str
    dtype: str = "bfloat16"
    """That a model runs in unless told otherwise."""
    efficiency: Efficiency = Efficiency()

    def rate(self, dtype: str) -> float:
        """FLOP/s at best. Raises UsageError for a dtype this chip does not compute in."""
        if dtype not in self.flops:
            raise UsageError(f"{self.name} does not compute in {dtype!r}: choose from {', '.join(self.flops)}")
        return self.flops[dtype]

    def with_efficiency(self, **changes: float) -> Chip:
        """The same chip with some of the assumptions replaced (`Efficiency`'s names)."""
        return replace(self, efficiency=replace(self.efficiency, **changes))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _gpu(name: str, gib: int, tb_s: float, host_gb_s: float, source: str, **tera: float) -> Chip:
    return Chip(
        name, gib * GIB, tb_s * 1e12, {key: value * 1e12 for key, value in tera.items()}, host_gb_s * 1e9, source
    )


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _gpu("a100-80", 80, 2.039, 32, "NVIDIA A100 80GB SXM data sheet",
             bfloat16=312, float16=312, int8=624, float32=19.5),
        _gpu("h100", 80, 3.35, 64, "NVIDIA H100 SXM5 data sheet, dense",
             bfloat16=989, float16=989, fp8_e4m3=1979, int8=1979, float32=67),
        _gpu("h200", 141, 4.8, 64, "NVIDIA H200 SXM data sheet, dense",
             bfloat16=989, float16=989, fp8_e4m3=1979, int8=1979, float32=67),
        _gpu("b200", 180, 7.7, 64, "NVIDIA HGX B200 data sheet, one of eight, dense",
             bfloat16=2250, float16=2250, fp8_e4m3=4500, int8=4500, nvfp4=9000, mxfp4=9000, float32=75),
        _gpu("l4", 24, 0.3, 32, "NVIDIA L4 data sheet, dense",
             bfloat16=121, float16=121, fp8_e4m3=242, int8=242, float32=30.3),
        _gpu("rtx4090", 24, 1.008, 32, "NVIDIA Ada GPU architecture white paper, dense, float32 accumulation",
             bfloat16=165.2, float16=165.2, fp8_e4m3=330.3, int8=660.6, float32=82.6),
    )
}  # fmt: skip


def chip_named(name: str) -> Chip:
    """A chip of `CHIPS`, or ``this-cpu``. Raises UsageError with the list for another name."""
    if name == THIS_CPU:
        return this_cpu()
    if name not in CHIPS:
        close = difflib.get_close_matches(name.lower(), [*CHIPS, THIS_CPU], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"chip {name!r} is not known; {hint}choose from {', '.join([*CHIPS, THIS_CPU])}")
    return CHIPS[name]


def this_cpu() -> Chip:
    """This machine's processor, from its measured ceilings. Raises WorkbenchError where none were measured."""
    found = kept_cpu()
    if found is None:
        raise WorkbenchError("this-cpu was not measured yet: run `WORKBENCH_DEVICE=cpu workbench info hardware`")
    return measured_chip(found)


def measured_chip(found: Hardware) -> Chip:
    """A device by its measured ceilings, and by the efficiencies of its calibration if there was one."""
    on_cpu = found.device == "cpu"
    told = f"measured ceilings of {found.name}, {found.threads} threads, {found.measured_at}"
    # Measured ceilings are what was reached; a step in Python costs more than one captured on a GPU.
    assumed = Efficiency(compute=1.0, memory=1.0, step_seconds=2e-3, request_seconds=1e-4)
    return Chip(
        THIS_CPU if on_cpu else THIS_GPU,
        found.memory_bytes,
        found.read_bandwidth,
        dict(found.matmul_flops),
        # A CPU's host has the same memory: what is moved is read and written. A GPU's link was not measured.
        found.read_bandwidth / 2 if on_cpu else PCIE_4,
        told if found.efficiency is None else f"{told}, calibrated",
        "float32" if on_cpu else "bfloat16",
        assumed if found.efficiency is None else Efficiency(**found.efficiency),
    )
