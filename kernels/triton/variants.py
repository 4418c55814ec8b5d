"""One configuration of a kernel that is really launched, described so that it can be compiled where no GPU is.

Each module of `kernels.triton` that has kernels has a function ``variants() -> list[Variant]``. Its launcher takes
tile sizes, warps and stages from the same table, so that what `kernels.inspect` shows is what runs:

    def variants() -> list[Variant]:
        return [
            Variant(
                name=f"d{block}",
                kernel=_add,
                signature={"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
                constexprs={"BLOCK": block},
                divisible_by_16=("x_ptr", "out_ptr", "n"),
                num_warps=warps,
                wants=("ldg.128",),
            )
            for block, warps in TILES
        ]

This module imports neither Triton nor torch. Modules are found by `kernels.compile.find`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ARCHS = ("sm_80", "sm_90", "sm_100")
# What can be wanted of the compiled code, and of which chips it is asked: the others have no such instruction.
WANTS: dict[str, tuple[str, ...]] = {
    "mma": ARCHS,  # any matrix instruction: HMMA, IMMA, HGMMA, UTCHMMA, …
    "wgmma": ("sm_90",),  # of a whole warpgroup, from shared memory: HGMMA, QGMMA, IGMMA
    "tcgen05": ("sm_100",),  # of the fifth generation, sums in tensor memory: UTCHMMA, UTCQMMA, …
    "cp.async": ARCHS,  # global to shared memory past the registers: LDGSTS
    "tma": ("sm_90", "sm_100"),  # a whole tile by one instruction: UTMALDG
    "ldg.128": ARCHS,  # 16 bytes or more by one thread from global memory, LDG or LDGSTS
    "stg.128": ARCHS,  # the same, written
}
_TYPE = re.compile(r"\*k?\w+|[iu](1|8|16|32|64)|fp(16|32|64)|bf16|fp8\w+|tensordesc<.+>|constexpr")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What the compiler must know of one launch. Raises ValueError where that is incomplete or contradicts itself.

    name: unique in its module; ``{module}.{name}`` is what `kernels.inspect` calls it and its line in the tables.
    kernel: the ``@triton.jit`` function itself, not one wrapped by autotune or heuristics.
    signature: a type for each argument, "*bf16", "i32", "i64", "fp32", "tensordesc<bf16[128, 64]>"; those in
        ``constexprs`` may be left out.
    constexprs: values known when compiling. Triton also makes one of an integer that is 1 at launch (a stride, say) and
        of None, so they stand here too wherever the launch has them.
    divisible_by_16: arguments that are multiples of 16 (addresses in bytes, numbers as they are). Triton finds this out
        at launch and cannot read 16 bytes at once without it. None: every pointer and no number.
    archs: of `ARCHS`, where this configuration is launched; None: on all.
    wants: words of `WANTS`, asked of those ``archs`` that have such an instruction.
    most_registers: of a thread, where more would leave an SM too few blocks to hide the wait for memory. None: the
        chip's 255.
    options: further options of the backend, ``maxnreg`` for instance.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    divisible_by_16: tuple[str, ...] | None = None
    num_warps: int = 4
    num_stages: int = 3
    archs: tuple[str, ...] | None = None
    wants: tuple[str, ...] = ()
    most_registers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise ValueError(f"variant {self.name!r}: a name has letters, digits and any of _ . + - only")
        arguments = self._arguments()
        self._check_types(arguments)
        unknown = [name for name in self.divisible_by_16 or () if self.signature.get(name, "constexpr") == "constexpr"]
        if unknown:
            raise ValueError(f"variant {self.name}: divisible_by_16 names {unknown}, which are no run-time arguments")
        if self.num_warps not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"variant {self.name}: num_warps={self.num_warps} is no power of two up to 32")
        if wrong := [arch for arch in self.archs or () if arch not in ARCHS]:
            raise ValueError(f"variant {self.name}: {wrong} are not among the chips {', '.join(ARCHS)}")
        if self.most_registers is not None and not 0 < self.most_registers < 256:
            raise ValueError(f"variant {self.name}: most_registers={self.most_registers}, and a thread has 1 to 255")
        for want in self.wants:
            if want not in WANTS:
                raise ValueError(f"variant {self.name}: wants {want!r}; there are {', '.join(WANTS)}")
            if not any(arch in WANTS[want] for arch in self.runs_on()):
                raise ValueError(f"variant {self.name}: wants {want}, which no chip of {self.archs} has")

    def runs_on(self) -> tuple[str, ...]:
        """The chips it is launched on."""
        return ARCHS if self.archs is None else self.archs

    def wanted_on(self, arch: str) -> tuple[str, ...]:
        """What is asked of the code for this chip."""
        return tuple(want for want in self.wants if arch in WANTS[want])

    def types(self) -> dict[str, str]:
        """The type of every argument, in the kernel's order."""
        return {name: self.signature.get(name, "constexpr") for name in self._arguments()}

    def divisible(self) -> list[int]:
        """Places of the arguments that are multiples of 16."""
        chosen = self.divisible_by_16
        return [
            place
            for place, (name, kind) in enumerate(self.types().items())
            if (kind.startswith("*") if chosen is None else name in chosen)
        ]

    def _arguments(self) -> list[str]:
        """Of the plain Python function, which compiled and interpreted kernels both keep as ``fn``."""
        function = getattr(self.kernel, "fn", None)
        if not inspect.isfunction(function):
            raise ValueError(
                f"variant {self.name}: kernel is {type(self.kernel).__name__}, not a @triton.jit function; "
                "of an autotuned kernel list each configuration with the function inside"
            )
        return list(inspect.signature(function).parameters)

    def _check_types(self, arguments: list[str]) -> None:
        for name, kind in self.signature.items():
            if name not in arguments:
                raise ValueError(f"variant {self.name}: the kernel has no argument {name!r}; it has {arguments}")
            if not _TYPE.fullmatch(kind):
                raise ValueError(f"variant {self.name}: {name} has type {kind!r}; types are like *bf16, i32, fp32")
            if (kind == "constexpr") != (name in self.constexprs):
                raise ValueError(f"variant {self.name}: {name} is {kind} in one place and not in the other")
        if extra := [name for name in self.constexprs if name not in arguments]:
            raise ValueError(f"variant {self.name}: constexprs {extra} are no arguments of the kernel")
        if missing := [name for name in arguments if name not in self.signature and name not in self.constexprs]:
            raise ValueError(f"variant {self.name}: no type and no value for {missing}")
