"""Parsers against what the tools of both Triton versions really print (excerpts, cut to the lines that matter)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.compile import sass
from kernels.compile.made import figures

EXCERPTS = Path(__file__).with_name("excerpts")


def test_what_is_no_output_of_the_tools_is_refused():
    with pytest.raises(ValueError, match="REG"):
        sass.usage("Fatbin elf code:")
    with pytest.raises(ValueError, match="no instruction"):
        sass.instructions("\t.headerflags\t@\"EF_CUDA_SM90\"")


def test_usage_is_the_largest_over_the_kernel_and_what_it_calls():
    text = (
        "Function f:\n  REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:384\n"
        "Function g:\n  REG:24 STACK:16 SHARED:8 LOCAL:4 CONSTANT[0]:384\n"
    )
    assert sass.usage(text) == sass.Usage(registers=40, local_bytes=20, static_shared=8)


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
