"""Occupancy against NVIDIA's published examples and against NVIDIA's own calculator, ``cuda_occupancy.h``."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.compile.chips import CHIPS, KIB, occupancy

REGISTERS = (1, 16, 24, 32, 33, 40, 48, 64, 72, 80, 96, 104, 128, 138, 168, 184, 188, 200, 224, 248, 255)
WARPS = (1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 32)
SHARED = (
    0,
    1,
    1024,
    16 * KIB,
    33000,
    39 * KIB,
    64 * KIB,
    75 * KIB,
    113 * KIB,
    114 * KIB,
    163 * KIB,
    164 * KIB,
    227 * KIB,
)


@pytest.mark.parametrize("arch", CHIPS)
def test_the_examples_of_the_best_practices_guide(arch):
    """CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers give 75 % with 12 blocks of 128 threads and
    63 % with 4 blocks of 320. (There of capability 7.0, whose 65,536 registers and 64 warps these chips have too.)"""
    small = occupancy(CHIPS[arch], registers=37, warps=4, shared=0)
    large = occupancy(CHIPS[arch], registers=37, warps=10, shared=0)
    assert (small.blocks, small.share, small.limited_by) == (12, 0.75, ("registers",))
    assert (large.blocks, large.share) == (4, 0.625)


def test_a_block_may_have_all_but_the_drivers_kibibyte():
    """CUDA's Ampere and Hopper tuning guides: 163 of 164 KB and 227 of 228 KB a block; one such block an SM."""
    for arch, most in (("sm_80", 163), ("sm_90", 227), ("sm_100", 227)):
        full = occupancy(CHIPS[arch], registers=32, warps=4, shared=most * KIB)
        assert (full.blocks, full.limited_by) == (1, ("shared memory",))
        assert occupancy(CHIPS[arch], registers=32, warps=4, shared=most * KIB + 1).blocks == 0


def test_tensor_memory_limits_blocks():
    held = occupancy(CHIPS["sm_100"], registers=32, warps=4, shared=0, tensor_columns=256)
    assert (held.blocks, held.limited_by) == (2, ("tensor memory",))


def test_nvidias_own_calculator_says_the_same_everywhere(tmp_path):
    """Every combination of the lists above, on each chip."""
    compiler = shutil.which("g++") or shutil.which("c++")
    spec = importlib.util.find_spec("triton")
    header = Path(spec.origin).parent / "backends/nvidia/include/cuda_occupancy.h" if spec else None
    if compiler is None or header is None or not header.exists():
        pytest.skip("no C++ compiler, or this Triton brings no cuda_occupancy.h")
    cases = list(itertools.product(CHIPS, REGISTERS, WARPS, SHARED))
    binary = tmp_path / "calculator"
    source = Path(__file__).with_name("calculator.cpp")
    subprocess.run([compiler, "-w", f"-I{header.parent}", str(source), "-o", str(binary)], check=True)
    lines = []
    for arch, registers, warps, shared in cases:
        chip, number = CHIPS[arch], int(arch[3:])
        lines.append(
            f"{number // 10} {number % 10} {chip.shared_per_sm} {chip.shared_per_block} {registers} {warps} {shared}"
        )
    done = subprocess.run([str(binary)], input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [int(word) for word in done.stdout.split()]
    ours = [
        occupancy(CHIPS[arch], registers=registers, warps=warps, shared=shared).blocks
        for arch, registers, warps, shared in cases
    ]
    assert len(theirs) == len(cases)
    assert [(case, a, b) for case, a, b in zip(cases, ours, theirs, strict=True) if a != b] == []
    assert len({*ours}) > 8, "the sweep must meet different limits"
