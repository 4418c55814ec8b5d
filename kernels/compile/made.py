"""The figures of one compiled kernel: what is printed, kept and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernels.compile import sass
from kernels.compile.build import Built, disassemble


@dataclass(frozen=True)
class Made:
    """registers: of a thread. local_bytes: of local memory a thread has; local_accesses: instructions that use it.
    shared: bytes of a block. warps: of a block. tensor_columns: of tensor memory.
    matrix, copies: instruction → how often it stands in the code (not how often it runs).
    loads, stores: bits → how many instructions move that much between global memory and one thread.
    """

    registers: int
    warps: int
    shared: int
    local_bytes: int = 0
    local_accesses: int = 0
    tensor_columns: int = 0
    matrix: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)

    def uses_local(self) -> bool:
        """Whether it spills, or keeps anything else in local memory."""
        return bool(self.local_bytes or self.local_accesses)

    def brief(self) -> dict[str, Any]:
        """As JSON: what is nought or empty is left out, but for the first three."""
        always = ("registers", "warps", "shared")
        return {name: value for name, value in asdict(self).items() if value or name in always}

    @classmethod
    def of(cls, brief: Mapping[str, Any]) -> Made:
        """From `brief`. Raises TypeError for what is no figure of it."""
        return cls(**brief)


def read(built: Built) -> Made:
    """Disassembles and counts."""
    resources, code = disassemble(built.cubin)
    return figures(resources, code, built.warps, built.shared, built.tensor_columns)


def figures(resources: str, code: str, warps: int, shared: int, tensor_columns: int) -> Made:
    """From the texts of cuobjdump and nvdisasm, and what the compiler said."""
    used, counted = sass.usage(resources), sass.instructions(code)
    return Made(
        registers=used.registers,
        warps=warps,
        shared=shared,
        local_bytes=used.local_bytes,
        local_accesses=sum(sass.by_base(counted, sass.LOCAL).values()),
        tensor_columns=tensor_columns,
        matrix=sass.matrix(counted),
        copies=sass.by_base(counted, sass.COPIES),
        loads={str(bits): count for bits, count in sass.widths(counted, sass.LOADS).items()},
        stores={str(bits): count for bits, count in sass.widths(counted, sass.STORES).items()},
    )
