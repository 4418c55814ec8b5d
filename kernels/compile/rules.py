"""What counts as a fault of a compiled kernel. Each fault is a sentence that names value and limit."""

from __future__ import annotations

import re

from kernels.compile import table
from kernels.compile.chips import CHIPS, occupancy
from kernels.compile.made import Made
from kernels.triton.variants import Variant

_MATRIX = {"mma": r".*MMA", "wgmma": r"[HQIB]GMMA", "tcgen05": r"UTC[A-Z]+MMA"}
_COPY = {"cp.async": "LDGSTS", "tma": "UTMALDG"}
_WIDE = 128


def broken(variant: Variant, arch: str, made: Made, row: table.Row | None) -> list[str]:
    """Faults that no table can excuse, and local memory without a reason in ``row``."""
    return [*_local(made, row), *_limits(variant, arch, made), *_missing(variant, arch, made)]


def has(want: str, made: Made) -> bool:
    """Whether the code has what a word of `WANTS` asks for."""
    if want in _MATRIX:
        return any(re.fullmatch(_MATRIX[want], name) for name in made.matrix)
    if want in _COPY:
        return _COPY[want] in made.copies
    widths = {"ldg.128": made.loads, "stg.128": made.stores}[want]
    return any(int(bits) >= _WIDE for bits in widths)


def _local(made: Made, row: table.Row | None) -> list[str]:
    if not made.uses_local() or table.reason(row):
        return []
    return [
        f"spills: {made.local_bytes} bytes of local memory a thread, {made.local_accesses} instructions use it; "
        'smaller tiles, more warps, or a "reason" in the table'
    ]


def _limits(variant: Variant, arch: str, made: Made) -> list[str]:
    chip = CHIPS[arch]
    faults = []
    if made.shared > chip.shared_per_block:
        faults.append(f"shared memory: {made.shared} bytes a block, {arch} has {chip.shared_per_block}")
    if made.tensor_columns > chip.tensor_columns:
        faults.append(f"tensor memory: {made.tensor_columns} columns a block, {arch} has {chip.tensor_columns}")
    held = occupancy(chip, registers=made.registers, warps=made.warps, shared=0)
    if not held.blocks:
        faults.append(f"{made.registers} registers × {made.warps} warps: more than an SM of {arch} has")
    if variant.most_registers is not None and made.registers > variant.most_registers:
        faults.append(f"{made.registers} registers a thread, and it may have {variant.most_registers}")
    return faults


def _missing(variant: Variant, arch: str, made: Made) -> list[str]:
    instead = ", ".join([*made.matrix, *made.copies]) or "neither matrix instructions nor asynchronous copies"
    return [
        f"wants {want}, and the code has {_wide(made) if want.endswith('128') else instead}"
        for want in variant.wanted_on(arch)
        if not has(want, made)
    ]


def _wide(made: Made) -> str:
    def widest(widths: dict[str, int]) -> str:
        return f"{max(map(int, widths))}-bit" if widths else "no"

    return f"{widest(made.loads)} loads and {widest(made.stores)} stores at most"
