"""Formats as a reader meets them: what becomes of a number, bits read back, limits, and what overflows."""

from __future__ import annotations

import re
import struct
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import UsageError
from workbench.lab import format_table, keep, kept_table, number_views
from workbench.lab.number_views import (
    SHOWN,
    beside_ml_dtypes,
    bit_fields,
    formula,
    label,
    overflow_table,
    rounding_table,
    told,
)
from workbench.lab.table import Table
from workbench.quant.formats import FORMATS, FloatFormat, decode


def texts(table: Table) -> list[list[str]]:
    return [[getattr(cell, "text", str(cell)) for cell in row] for row in table.rows]


@pytest.mark.parametrize(
    ("x", "name", "number", "what", "error"),
    [
        (7.6, "int8", 8, "rounded", 0.4),
        (7.6, "fp8_e4m3", 7.5, "rounded", 0.1),
        (1000, "fp8_e4m3", 448, "clamped", 552),
        (4096, "fp8_e4m3", 448, "clamped", 3648),
        (1000, "fp8_e5m2", 1024, "rounded", 24),
        (4096, "fp8_e5m2", 4096, "exact", 0),
        (-129, "int8", -128, "clamped", 1),
        (-128, "int8", -128, "exact", 0),
        (1e-6, "fp8_e4m3", 0, "to 0", 1e-6),
        (0, "int4", 0, "exact", 0),
    ],
)
def test_what_becomes_of_a_number(x: float, name: str, number: float, what: str, error: float) -> None:
    kept = keep(x, name)
    assert (kept.number, kept.what) == (number, what) and kept.error == pytest.approx(error)


@given(st.floats(-60000, 60000))
def test_sixteen_bits_are_those_of_struct(x: float) -> None:
    kept = keep(x, "fp16")
    assert f"{kept.code:016b}" == f"{struct.unpack('<H', struct.pack('<e', x))[0]:016b}"
    assert kept.number == struct.unpack("<e", struct.pack("<e", x))[0]


def test_a_scale_is_what_1_stands_for() -> None:
    assert keep(4096, "fp8_e4m3", 4096 / 448).what == "exact"
    assert keep(7.6, "int8", 4096 / 127).what == "to 0"
    assert texts(kept_table((4096,), ("int8",), scales=(4096 / 127,))) == [["INT8", "4,096 (exact)"]]


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "fp16", "e8m0"])
def test_every_code_is_read_as_it_is_decoded(name: str) -> None:
    format = FORMATS[name]
    assert isinstance(format, FloatFormat)
    codes = range(0, 1 << format.bits, 1 if format.bits < 16 else 37)
    for code, value in zip(codes, decode(torch.tensor(codes), format).tolist(), strict=True):
        text = formula(code, format)
        if value - value != 0:
            assert text == ("NaN" if value != value else "+∞" if value > 0 else "−∞")
            continue
        sign, whole, part, of, power = re.fullmatch(r"([+−])\((\d) \+ (\d+)/(\d+)\) · 2\^(-?\d+)", text).groups()  # type: ignore[union-attr]
        found = (int(whole) + Fraction(int(part), int(of))) * Fraction(2) ** int(power)
        assert Fraction(value) == (-found if sign == "−" else found)
        assert "".join(bit_fields(code, format)) == f"{code:0{format.bits}b}"


def test_fields_have_the_widths_of_the_format() -> None:
    assert [len(bits) for bits in bit_fields(0, FORMATS["bf16"])] == [1, 8, 7]
    assert [len(bits) for bits in bit_fields(0, FORMATS["e8m0"])] == [0, 8, 0]
    assert bit_fields(0b1001, FORMATS["int4"]) == ("1", "001")


def test_limits_are_those_of_numpy_and_ml_dtypes() -> None:
    rows = {row[0]: row for row in texts(format_table())}
    assert list(rows) == [label(name) for name in SHOWN]
    theirs = {"FP32": np.float32, "BF16": ml_dtypes.bfloat16, "FP16": np.float16, "FP8 E4M3": ml_dtypes.float8_e4m3fn}
    theirs |= {"FP8 E5M2": ml_dtypes.float8_e5m2, "FP4 E2M1": ml_dtypes.float4_e2m1fn}
    for name, kind in theirs.items():
        info = ml_dtypes.finfo(kind)
        found = [float(text) for text in rows[name][3:7]]
        wanted = [float(one) for one in (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)]
        assert found == pytest.approx(wanted, rel=0.06), name  # as few digits as are shown
    assert [rows[name][7] for name in ("FP32", "TF32", "BF16")] == ["0.0625–0.125", "512–1024", "4096–8192"]
    assert all(rows[name][7] == "beyond its range" for name in ("FP16", "FP8 E4M3", "FP8 E5M2", "FP4 E2M1", "INT8"))


def test_without_clamping_each_format_keeps_what_it_has() -> None:
    table = overflow_table((464, 465, 100_000, 3.4e38), ("fp8_e4m3", "fp8_e5m2", "fp16", "bf16"))
    kinds = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16, ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        wanted = [np.float32([464, 465, 1e5, 3.4e38]).astype(kind).astype(np.float64) for kind in kinds]
    found = np.array([[float(text.replace(",", "")) for text in row[1:]] for row in texts(table)])
    assert np.array_equal(found, np.array(wanted), equal_nan=True)


def test_each_way_of_rounding_is_named_and_drawn_alike() -> None:
    table = rounding_table((2.5, 5, -2.5), "fp4_e2m1", 3)
    rows = {row[0]: row[1:] for row in texts(table)}
    assert rows["nearest"] == ["2", "4", "-2"] and rows["away"] == ["3", "6", "-3"] and rows["zero"] == ["2", "4", "-2"]
    assert rows["up"] == ["3", "6", "-2"] and rows["down"] == ["2", "4", "-3"]
    assert texts(rounding_table((2.5, 5, -2.5), "fp4_e2m1", 3)) == texts(table)


def test_ml_dtypes_agrees_and_a_difference_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fp8_e4m3", "fp8_e5m2"):
        assert "all 256 codes" in beside_ml_dtypes(name)
    with pytest.raises(UsageError, match="choose from fp8_e4m3, fp8_e5m2"):
        beside_ml_dtypes("fp16")
    with monkeypatch.context() as broken, pytest.raises(AssertionError, match="other FP8 E4M3"):
        broken.setattr(number_views, "decode", lambda codes, format: 2 * decode(codes, format))
        beside_ml_dtypes("fp8_e4m3")
    monkeypatch.setattr(number_views, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert "not installed" in beside_ml_dtypes("fp8_e4m3")


def test_errors_are_told_with_few_digits() -> None:
    assert told(keep(1000, "fp8_e4m3")) == "clamped, off by 552" and told(keep(7.6, "int8")) == "rounded, off by 0.4"
    assert told(keep(4096, "fp8_e4m3")) == "clamped, off by 3,648" and told(keep(1e9, "int8")).endswith("1e+09")
