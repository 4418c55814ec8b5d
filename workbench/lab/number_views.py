"""Number formats as a reader meets them: their limits, their bits, and what becomes of a number in each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torch

from workbench.errors import UsageError
from workbench.lab.table import Cell, Table
from workbench.quant.formats import ROUNDINGS, FloatFormat, Format, decode, encode, format_named, round_to, spacing

FLOATS = ("fp32", "tf32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3", "fp4_e2m1")
SHOWN = (*FLOATS, "int8", "int4")
"""All but E8M0, which holds scales only, from the widest to the narrowest."""


class Kept(NamedTuple):
    """What becomes of a number."""

    code: int
    number: float
    what: str
    """``exact``, ``rounded``, ``clamped`` (it was beyond the range) or ``to 0``."""
    error: float
    """How far off it is."""


def label(name: str) -> str:
    """``FP8 E4M3`` for ``fp8_e4m3``."""
    return name.upper().replace("_", " ")


def keep(x: float, name: str, scale: float = 1.0) -> Kept:
    """``x`` in a format, rounded to the nearest and clamped; ``scale``: what 1 stands for."""
    format = format_named(name)
    code = int(encode(torch.tensor(x / scale, dtype=torch.float64), format))
    number = float(decode(torch.tensor(code), format)) * scale
    beyond = not format.min <= x / scale <= format.max
    what = "clamped" if beyond else "exact" if number == x else "to 0" if number == 0 else "rounded"
    return Kept(code, number, what, abs(number - x))


def told(kept: Kept) -> str:
    """What happened, in words: ``clamped, off by 552``."""
    if kept.what in ("exact", "to 0"):
        return kept.what
    error = f"{kept.error:,.4g}" if 1 <= kept.error < 1e5 else f"{kept.error:.2g}"
    return f"{kept.what}, off by {error}"


def kept_table(values: Sequence[float], names: Sequence[str] = SHOWN, scales: Sequence[float] = ()) -> Table:
    """A row for each format: what each value becomes in it. ``scales``: of each format, else 1."""
    rows: list[list[Cell | str | int]] = []
    for index, name in enumerate(names):
        scale = scales[index] if scales else 1.0
        rows.append([label(name), *(_cell(keep(value, name, scale)) for value in values)])
    return Table(["", *(f"{value:,g}" for value in values)], rows)


def format_table(names: Sequence[str] = SHOWN) -> Table:
    """Limits of each format, computed."""
    rows: list[list[Cell | str | int]] = []
    for name in names:
        one = format_named(name)
        steps = spacing(torch.tensor([1.0, 1e6, 2e6 - 1]), one).tolist()
        far = f"{steps[1]:g}–{steps[2]:g}" if steps[2] == steps[2] else "beyond its range"
        if isinstance(one, FloatFormat):
            parts = f"1, {one.exponent_bits}, {one.mantissa_bits}"
            small = [f"{one.bias}", f"{one.max:.6g}", f"{one.smallest_normal:.2g}", f"{one.tiny:.2g}"]
        else:
            parts, small = f"{one.bits} in two's complement", ["–", f"{one.max:g}", "–", "1"]
        rows.append([label(name), parts, *small, f"{steps[0]:.2g}", far])
    head = ["format", "sign, exponent, mantissa", "bias", "largest", "smallest normal", "smallest above 0", "step at 1"]
    return Table([*head, "between 1 and 2 million"], rows, "computed from the bits")


def overflow_table(values: Sequence[float], names: Sequence[str]) -> Table:
    """A row for each format: what values become in it where nothing is clamped, infinity or NaN among it."""
    rows = []
    for name in names:
        found = round_to(torch.tensor(values, dtype=torch.float64), format_named(name), saturate=False)
        rows.append([label(name), *(f"{number:,.6g}" for number in found.tolist())])
    return Table(["not clamped", *(f"{value:,g}" for value in values)], rows)


def rounding_table(values: Sequence[float], name: str, seed: int = 0) -> Table:
    """A row for each way of rounding to a format; ``seed``: of the draw that ``stochastic`` makes."""
    numbers, rows = torch.tensor(values, dtype=torch.float64), []
    for way in ROUNDINGS:
        found = round_to(numbers, format_named(name), way, generator=torch.Generator().manual_seed(seed))
        rows.append([way, *(f"{number:g}" for number in found.tolist())])
    return Table([f"to {label(name)}", *(f"{value:g}" for value in values)], rows)


_THEIRS = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def beside_ml_dtypes(name: str) -> str:
    """Compares what every code of an 8-bit float means with the package ml_dtypes, where it is installed; in words.

    Raises AssertionError where the two differ.
    """
    if name not in _THEIRS:
        raise UsageError(f"{name!r} is not compared with ml_dtypes; choose from {', '.join(_THEIRS)}")
    if find_spec("ml_dtypes") is None:
        return "ml_dtypes is not installed, so nothing was compared with it"
    import ml_dtypes

    codes = torch.arange(256, dtype=torch.uint8)
    theirs = torch.from_numpy(codes.numpy().view(getattr(ml_dtypes, _THEIRS[name])).astype("float32"))
    assert torch.equal(decode(codes, format_named(name)).nan_to_num(-1), theirs.nan_to_num(-1)), f"other {label(name)}"
    return f"ml_dtypes reads all {len(codes)} codes of {label(name)} as this engine does"


def bit_fields(code: int, format: Format) -> tuple[str, ...]:
    """The bits of a code: sign, exponent and mantissa; of a whole number sign and the rest."""
    bits = f"{code:0{format.bits}b}"
    if not isinstance(format, FloatFormat):
        return bits[0], bits[1:]
    sign = 0 if format.unsigned else 1
    return bits[:sign], bits[sign : sign + format.exponent_bits], bits[sign + format.exponent_bits :]


def formula(code: int, format: FloatFormat) -> str:
    """How a code is read, as text: ``+(1 + 7/8) · 2^2``; without the 1 where it is subnormal."""
    sign, exponent, mantissa = bit_fields(code, format)
    number = float(decode(torch.tensor(code), format))
    if number - number != 0:
        return "NaN" if number != number else "−∞" if number < 0 else "+∞"
    field, fraction = int(exponent, 2), int(mantissa, 2) if mantissa else 0
    normal = field > 0 or format.unsigned
    power = (field if normal else 1) - format.bias
    return f"{'−' if sign == '1' else '+'}({int(normal)} + {fraction}/{1 << format.mantissa_bits}) · 2^{power}"


def _cell(kept: Kept) -> Cell:
    tones = {"exact": "quiet", "rounded": "", "clamped": "alert", "to 0": "recompute"}
    return Cell(f"{kept.number:,.7g} ({told(kept)})", tones[kept.what])
