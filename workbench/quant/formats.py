"""Number formats as data: which numbers a handful of bits can stand for, and how a number gets there.

A float of e exponent and m mantissa bits counts its magnitudes upwards: code 0 is 0, the next codes are equally far
apart, and from 2·2^m on the distance doubles every 2^m codes. So encoding is: find the power of two below |x|, divide
by the distance there, round to a whole number, add up. Rounding into the next power of two needs no case of its own.

Sources: IEEE 754; OCP 8-bit Floating Point 1.0 (E4M3 has no infinity and one NaN); OCP Microscaling 1.0 (E2M1 has
neither; E8M0 is a power of two without sign or zero). Tests hold every code and every float16 against `ml_dtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.errors import UsageError

ROUNDINGS = ("nearest", "away", "zero", "up", "down", "stochastic")
"""To the nearest with ties to even; to the nearest with ties away from 0; towards 0, +∞ or −∞; up or down by chance,
so that the mean is right."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Sign, exponent, mantissa. ``specials``: ``ieee`` (infinities and NaNs take the last exponent), ``nan`` (one code,
    all ones, is NaN) or ``none``. ``unsigned`` formats have no sign and no 0: they are scales."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: str = "ieee"
    unsigned: bool = False

    @property
    def bits(self) -> int:
        return self.exponent_bits + self.mantissa_bits + (not self.unsigned)

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self) -> int:
        """Of the smallest normal number."""
        return (0 if self.unsigned else 1) - self.bias

    @property
    def magnitudes(self) -> int:
        """Codes without the sign."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def max_code(self) -> int:
        taken = {"ieee": 1 << self.mantissa_bits, "nan": 1, "none": 0}[self.specials]
        return self.magnitudes - taken - 1

    @property
    def inf_code(self) -> int | None:
        return self.max_code + 1 if self.specials == "ieee" else None

    @property
    def nan_code(self) -> int | None:
        """The quiet NaN."""
        if self.specials == "none":
            return None
        return self.magnitudes - 1 if self.specials == "nan" else self.max_code + 1 + (1 << self.mantissa_bits - 1)

    @property
    def max(self) -> float:
        return float(decode(torch.tensor(self.max_code), self))

    @property
    def min(self) -> float:
        """The least finite number."""
        return self.tiny if self.unsigned else -self.max

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.least_exponent

    @property
    def tiny(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.least_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number."""
        return 2.0**-self.mantissa_bits

    @property
    def top_exponent(self) -> int:
        """Of the largest number: 2 for E2M1 (6 = 1.5 · 2²), 8 for E4M3, 15 for E5M2."""
        return (self.max_code >> self.mantissa_bits) - self.bias


@dataclass(frozen=True, slots=True)
class IntFormat:
    """Whole numbers in two's complement."""

    name: str
    bits: int

    @property
    def max(self) -> float:
        return float(2 ** (self.bits - 1) - 1)

    @property
    def min(self) -> float:
        return float(-(2 ** (self.bits - 1)))


Format = FloatFormat | IntFormat

FP32 = FloatFormat("fp32", 8, 23)
TF32 = FloatFormat("tf32", 8, 10)  # 19 bits that matter, kept in 32
FP16 = FloatFormat("fp16", 5, 10)
BF16 = FloatFormat("bf16", 8, 7)
E4M3 = FloatFormat("fp8_e4m3", 4, 3, "nan")
E5M2 = FloatFormat("fp8_e5m2", 5, 2)
E2M1 = FloatFormat("fp4_e2m1", 2, 1, "none")
E8M0 = FloatFormat("e8m0", 8, 0, "nan", unsigned=True)
INT8 = IntFormat("int8", 8)
INT4 = IntFormat("int4", 4)
FORMATS: dict[str, Format] = {f.name: f for f in (FP32, TF32, FP16, BF16, E4M3, E5M2, E2M1, E8M0, INT8, INT4)}


def format_named(name: str) -> Format:
    """Raises UsageError with the names there are."""
    if name not in FORMATS:
        raise UsageError(f"number format {name!r} is not known; choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def encode(
    x: Tensor,
    format: Format,
    rounding: str = "nearest",
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The codes of ``x``, int64 of its shape.

    Args:
        saturate: numbers and infinities beyond the range become its end; otherwise they become what the format keeps
            for them, infinity or NaN (E8M0: NaN for 0 too, which it cannot hold).
        generator: of ``stochastic`` rounding.

    Raises:
        ValueError: NaN, or without ``saturate`` a number beyond the range, in a format that has no code for it.
    """
    if rounding not in ROUNDINGS:
        raise UsageError(f"rounding {rounding!r} is not known; choose from {', '.join(ROUNDINGS)}")
    values = x.double()
    if isinstance(format, IntFormat):
        return _encode_int(values, format, rounding, saturate, generator)
    negative, nan = torch.signbit(values), values.isnan()
    magnitude = torch.where(values.isfinite(), values.abs(), 0.0)
    least, m = format.least_exponent, format.mantissa_bits
    exponent = torch.where(magnitude > 0, (torch.frexp(magnitude).exponent.long() - 1).clamp_min(least), least)
    steps = _round(magnitude * power_of_two(m - exponent), negative, rounding, generator)
    codes = (exponent - least << m) + steps.long() - (1 if format.unsigned else 0)
    codes.clamp_min_(0)
    if format.unsigned:
        nan = nan | (negative & (values != 0)) | ((values == 0) & (not saturate))
    # A rounding towards 0 never leaves the range.
    inward = {"zero": torch.ones_like(negative), "up": negative, "down": ~negative}.get(rounding)
    infinite = values.isinf()
    beyond = (codes > format.max_code) | infinite
    codes = torch.where(beyond, format.max_code, codes)
    if not saturate:
        lost = beyond if inward is None else beyond & (infinite | ~inward)
        over = format.nan_code if format.inf_code is None else format.inf_code
        codes = _replace(codes, lost, over, f"{format.name} holds nothing beyond ±{format.max:g}: use saturate=True")
    codes = _replace(codes, nan, format.nan_code, f"{format.name} has no NaN: it can hold finite numbers only")
    return codes if format.unsigned else torch.where(negative, codes + format.magnitudes, codes)


def decode(codes: Tensor, format: Format) -> Tensor:
    """The numbers that codes stand for, float32, exact for every format here."""
    codes = codes.long()
    if isinstance(format, IntFormat):
        half = 1 << format.bits - 1
        return ((codes ^ half) - half).float()
    m, magnitude = format.mantissa_bits, codes & format.magnitudes - 1
    field, fraction = magnitude >> m, magnitude & (1 << m) - 1
    whole = torch.where((field > 0) | format.unsigned, fraction + (1 << m), fraction)
    exponent = field.clamp_min(0 if format.unsigned else 1) - format.bias - m
    values = whole.double() * power_of_two(exponent)
    if format.specials != "none":
        over = torch.where(magnitude == (-1 if format.inf_code is None else format.inf_code), torch.inf, torch.nan)
        values = torch.where(magnitude > format.max_code, over.double(), values)
    signed = torch.where(codes >= format.magnitudes, -values, values)
    return (values if format.unsigned else signed).float()


def round_to(
    x: Tensor,
    format: Format,
    rounding: str = "nearest",
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``x`` as the format can hold it: `encode`, then `decode`."""
    return decode(encode(x, format, rounding, saturate, generator), format)


def grid(format: Format) -> Tensor:
    """All finite numbers of a format of at most 16 bits in rising order, 0 once."""
    if format.bits > 16:
        raise UsageError(f"{format.name} holds too many numbers to list; grid is for formats of at most 16 bits")
    values = decode(torch.arange(1 << format.bits), format)
    return torch.unique(values[values.isfinite()] + 0.0)  # -0 + 0 is 0


def spacing(x: Tensor, format: Format) -> Tensor:
    """Distance, at ``x``, between the number below or at |x| and the next one; float64. NaN beyond the range."""
    magnitude = x.double().abs()
    if isinstance(format, IntFormat):
        return torch.where(magnitude <= format.max, 1.0, torch.nan).double()
    exponent = torch.frexp(magnitude).exponent.long() - 1
    exponent = torch.where(magnitude > 0, exponent.clamp_min(format.least_exponent), format.least_exponent)
    return torch.where(magnitude <= format.max, power_of_two(exponent - format.mantissa_bits), torch.nan)


def _encode_int(
    values: Tensor, format: IntFormat, rounding: str, saturate: bool, generator: torch.Generator | None
) -> Tensor:
    if values.isnan().any():
        raise ValueError(f"{format.name} has no NaN: it can hold finite numbers only")
    whole = torch.copysign(_round(values.abs(), torch.signbit(values), rounding, generator), values)
    kept = whole.clamp(format.min, format.max)
    if not saturate and not torch.equal(kept, whole):
        raise ValueError(f"{format.name} holds {format.min:g} to {format.max:g} only: use saturate=True")
    return kept.long() & (1 << format.bits) - 1


def _round(steps: Tensor, negative: Tensor, rounding: str, generator: torch.Generator | None) -> Tensor:
    """Magnitudes in steps of the grid to whole steps."""
    if rounding == "nearest":
        return steps.round()
    if rounding == "away":
        low = steps.floor()
        return torch.where(steps - low >= 0.5, low + 1, low)
    if rounding == "stochastic":
        low = steps.floor()
        draw = torch.rand(steps.shape, dtype=torch.float64, generator=generator, device=steps.device)
        return torch.where(draw < steps - low, low + 1, low)
    outward = torch.zeros_like(negative) if rounding == "zero" else negative == (rounding == "down")
    return torch.where(outward, steps.ceil(), steps.floor())


def _replace(codes: Tensor, where: Tensor, code: int | None, otherwise: str) -> Tensor:
    if code is None:
        if where.any():
            raise ValueError(otherwise)
        return codes
    return torch.where(where, code, codes)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, written into the bits: exact, where a library's pow may not be."""
    return (exponent.clamp(-1022, 1023) + 1023 << 52).view(torch.float64)
