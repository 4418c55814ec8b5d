"""The limits of the chips that kernels are compiled for, and occupancy: how many warps of a kernel an SM holds at once.

Sources. Limits of an SM, a block and a thread: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", table
"Technical Specifications per Compute Capability", columns 8.0, 9.0 and 10.0. Granularity (registers given out by 256 to
a warp, shared memory by 128 bytes to a block, four partitions with a quarter of the registers each) and the 1 KiB of
shared memory that the driver keeps of every block: ``cuda_occupancy.h`` of the CUDA toolkit, which Triton brings; the
tests compare `occupancy` with that header's own answer. Tensor memory, 512 columns an SM: PTX ISA, "Tensor Memory".
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
THREADS_PER_WARP = 32


@dataclass(frozen=True)
class Chip:
    """What an SM (streaming multiprocessor) of this architecture has. Shared memory in bytes."""

    arch: str
    example: str
    shared_per_sm: int
    shared_per_block: int
    tensor_columns: int = 0
    shared_reserved: int = 1 * KIB
    shared_unit: int = 128
    warps_per_sm: int = 64
    warps_per_block: int = 32
    blocks_per_sm: int = 32
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255
    register_unit: int = 256
    partitions: int = 4


CHIPS = {
    chip.arch: chip
    for chip in (
        Chip("sm_80", "A100", shared_per_sm=164 * KIB, shared_per_block=163 * KIB),
        Chip("sm_90", "H100, H200", shared_per_sm=228 * KIB, shared_per_block=227 * KIB),
        Chip("sm_100", "B200", shared_per_sm=228 * KIB, shared_per_block=227 * KIB, tensor_columns=512),
    )
}


@dataclass(frozen=True)
class Occupancy:
    """blocks: held by an SM at once; warps: theirs together. share: of the warps an SM can hold. limited_by: what would
    have to be less for one block more. No blocks: the kernel cannot be launched."""

    blocks: int
    warps: int
    share: float
    limited_by: tuple[str, ...]


def occupancy(chip: Chip, *, registers: int, warps: int, shared: int, tensor_columns: int = 0) -> Occupancy:
    """``registers`` of a thread; ``warps``, ``shared`` bytes and ``tensor_columns`` of a block."""
    limits = {
        "registers": _by_registers(chip, registers, warps),
        "shared memory": _by_shared(chip, shared),
        "warps": chip.warps_per_sm // warps if warps <= chip.warps_per_block else 0,
        "blocks": chip.blocks_per_sm,
    }
    if tensor_columns:
        limits["tensor memory"] = chip.tensor_columns // tensor_columns
    blocks = min(limits.values())
    limited_by = tuple(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / chip.warps_per_sm, limited_by)


def _by_registers(chip: Chip, registers: int, warps: int) -> int:
    """A warp's registers lie in one partition, so what is left over in one is no use to another."""
    if registers > chip.registers_per_thread:
        return 0
    of_a_warp = _up(max(registers, 1) * THREADS_PER_WARP, chip.register_unit)
    # The hardware admits a block as if its warps were dealt out evenly.
    if of_a_warp * _up(warps, chip.partitions) > chip.registers_per_sm:
        return 0
    in_a_partition = chip.registers_per_sm // chip.partitions // of_a_warp
    return in_a_partition * chip.partitions // warps


def _by_shared(chip: Chip, shared: int) -> int:
    if shared > chip.shared_per_block:
        return 0
    return chip.shared_per_sm // _up(shared + chip.shared_reserved, chip.shared_unit)


def _up(value: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return -(-value // unit) * unit
