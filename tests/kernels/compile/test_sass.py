"""Parsers against what the tools of both Triton versions really print (excerpts, cut to the lines that matter)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.compile import sass
from kernels.compile.made import figures

EXCERPTS = Path(__file__).with_name("excerpts")


# What `grep -c` finds in them: registers, local bytes, local accesses, matrix, copies, loads, stores.
BY_COUNT = {
    "sound-sm_80": (0, 0, {"HMMA": 3}, {"LDGSTS": 3}, {"128": 3}, {"128": 3}),
    "sound-sm_90": (0, 0, {"HGMMA": 3}, {"LDGSTS": 3}, {"128": 3}, {"128": 3}),
    "sound-sm_100": (0, 0, {"UTCHMMA": 3}, {"LDGSTS": 3}, {"128": 3}, {"128": 3}),
    "spills-sm_90": (None, 12, {"HGMMA": 3}, {"LDGSTS": 3}, {"128": 3}, {"128": 3}),
    "descriptor-sm_90": (0, 0, {}, {"UTMALDG": 1}, {}, {"32": 1}),
    "unaligned-sm_80": (0, 0, {"HMMA": 3}, {}, {"16": 3}, {"16": 3}),
}
REGISTERS = {
    "3.6.0": {"sound-sm_80": 160, "sound-sm_90": 114, "sound-sm_100": 92}
    | {"spills-sm_90": 255, "descriptor-sm_90": 39, "unaligned-sm_80": 162},
    "3.9.0": {"sound-sm_80": 180, "sound-sm_90": 114, "sound-sm_100": 92}
    | {"spills-sm_90": 255, "descriptor-sm_90": 40, "unaligned-sm_80": 168},
}
SPILLED = {"3.6.0": 3120, "3.9.0": 3144}


@pytest.mark.parametrize("version", REGISTERS)
@pytest.mark.parametrize("name", BY_COUNT)
def test_what_the_tools_print_is_read(version, name):
    resources, code = (EXCERPTS / f"{version}-{name}.txt").read_text(encoding="utf-8").split("\n----\n")
    local_bytes, accesses, matrix, copies, loads, stores = BY_COUNT[name]
    made = figures(resources, code, warps=4, shared=64, tensor_columns=0)
    assert made.registers == REGISTERS[version][name]
    assert made.local_bytes == (SPILLED[version] if local_bytes is None else local_bytes)
    assert made.local_accesses == accesses
    assert (made.matrix, made.copies, made.loads, made.stores) == (matrix, copies, loads, stores)
    assert (made.warps, made.shared) == (4, 64)


def test_what_is_no_output_of_the_tools_is_refused():
    with pytest.raises(ValueError, match="REG"):
        sass.usage("Fatbin elf code:")
    with pytest.raises(ValueError, match="no instruction"):
        sass.instructions('\t.headerflags\t@"EF_CUDA_SM90"')


def test_usage_is_the_largest_over_the_kernel_and_what_it_calls():
    text = (
        "Function f:\n  REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:384\n"
        "Function g:\n  REG:24 STACK:16 SHARED:8 LOCAL:4 CONSTANT[0]:384\n"
    )
    assert sass.usage(text) == sass.Usage(registers=40, local_bytes=20)


def test_widths_come_from_the_modifier_that_is_one():
    code = "".join(
        f"        /*{place:04x}*/  {line} ;\n"
        for place, line in enumerate(
            [
                "@!P0 LDG.E.128 R4, desc[UR4][R2.64]",
                "LDG.E R5, [R2.64]",
                "@P1 LDG.E.U16.CONSTANT R5, [R2.64]",
                "LDGSTS.E.BYPASS.LTC128B.64 [R9], [R2.64]",
                "@UP0 LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]",
                "STG.E.64 desc[UR4][R2.64], R4",
                "LDL.LU.128 R4, [R1]",
            ]
        )
    )
    counted = sass.instructions(code)
    assert sum(counted.values()) == 7
    assert sass.widths(counted, sass.LOADS) == {256: 1, 128: 1, 64: 1, 32: 1, 16: 1}
    assert sass.widths(counted, sass.STORES) == {64: 1}
    assert sass.by_base(counted, sass.LOCAL) == {"LDL": 1}
