"""Reads what NVIDIA's tools print: resources from ``cuobjdump -res-usage``, instructions from ``nvdisasm -c``.

SASS is the machine code of the chip, and what is in it cannot be argued with:

    /*0150*/   @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;      16 bytes from global memory to registers
    /*0400*/        LDGSTS.E.BYPASS.128 [R9], [R2.64] ;   cp.async: global to shared memory past the registers
    /*0b20*/        UTMALDG.2D [UR8], [UR4] ;             TMA: one thread orders a whole tile
    /*0900*/        HMMA.16816.F32.BF16 R4, R8, R12, R4 ; mma.sync: one warp, operands in registers
    /*0c30*/        HGMMA.64x128x16.F32.BF16 …            wgmma: four warps, operands in shared memory
    /*1a00*/        UTCHMMA …                             tcgen05: one thread, sums in tensor memory
    /*2200*/        STL.64 [R1+0x8], R6 ;                 local memory: a spill
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

# What stands at SHARED is left alone: Triton asks for its shared memory at launch, and from sm_90 on ptxas writes down
# there the KiB that the driver keeps of every block.
_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:\d+\s+LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?([A-Z]\w*(?:\.\w+)*)", re.MULTILINE)
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
COPIES = ("LDGSTS", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP")
LOADS, STORES, LOCAL = ("LDG", "LDGSTS"), ("STG",), ("LDL", "STL")


@dataclass(frozen=True)
class Usage:
    """Of one thread: registers, and bytes of local memory (its stack)."""

    registers: int
    local_bytes: int


def usage(text: str) -> Usage:
    """The largest over the kernel and the functions it calls. Raises ValueError where no line tells."""
    found = [[int(value) for value in line] for line in _USAGE.findall(text)]
    if not found:
        raise ValueError(f"no line REG:… STACK:… in what cuobjdump printed: {text[:200]!r}")
    return Usage(max(line[0] for line in found), max(line[1] + line[2] for line in found))


def instructions(text: str) -> Counter[str]:
    """How often each instruction stands in the code, modifiers included (``LDG.E.128``). Raises ValueError for none."""
    counted = Counter(_INSTRUCTION.findall(text))
    if not counted:
        raise ValueError(f"no instruction in what nvdisasm printed: {text[:200]!r}")
    return counted


def base(instruction: str) -> str:
    return instruction.split(".", 1)[0]


def by_base(counted: Counter[str], names: tuple[str, ...]) -> dict[str, int]:
    """Counts of these instructions whatever their modifiers, in the order given, without those that never occur."""
    totals: Counter[str] = Counter()
    for instruction, count in counted.items():
        totals[base(instruction)] += count
    return {name: totals[name] for name in names if totals[name]}


def matrix(counted: Counter[str]) -> dict[str, int]:
    """Matrix instructions of every generation: all their names end in MMA."""
    names = sorted({base(instruction) for instruction in counted if base(instruction).endswith("MMA")})
    return by_base(counted, tuple(names))


def widths(counted: Counter[str], names: tuple[str, ...]) -> dict[int, int]:
    """Bits moved by one thread → how many such instructions, the widest first. Without a modifier it is 32."""
    totals: Counter[int] = Counter()
    for instruction, count in counted.items():
        name, *modifiers = instruction.split(".")
        if name in names:
            totals[next((_BITS[word] for word in modifiers if word in _BITS), 32)] += count
    return dict(sorted(totals.items(), reverse=True))
