"""Small float formats as numpy arrays of bits: what a code means, and a number rounded once into a code.

numpy has no bf16 and no fp8, so Triton's interpreter keeps them as uint16 and uint8. Rounding is to nearest, ties to
even; fp8 saturates as `cvt.rn.satfinite` does on the GPU (infinity too becomes the largest finite number), bf16 and
fp16 overflow to infinity. Every NaN becomes the format's one canonical NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Format(NamedTuple):
    """``mantissa`` bits after the point, ``min_exponent`` of the smallest normal number, ``largest`` finite number,
    ``nan`` the code of NaN, ``bits`` the numpy type that holds a code; ``saturates``: what is larger becomes largest.
    """

    name: str
    bits: np.dtype
    mantissa: int
    min_exponent: int
    largest: float
    nan: int
    saturates: bool = False


BF16 = Format("bf16", np.dtype(np.uint16), 7, -126, (2 - 2**-7) * 2.0**127, 0x7FFF)
E4M3 = Format("fp8e4nv", np.dtype(np.uint8), 3, -6, 448.0, 0x7F, saturates=True)
E5M2 = Format("fp8e5", np.dtype(np.uint8), 2, -14, 57344.0, 0x7F, saturates=True)
FP16 = Format("fp16", np.dtype(np.uint16), 10, -14, 65504.0, 0x7E00)
FP32 = Format("fp32", np.dtype(np.uint32), 23, -126, (2 - 2**-23) * 2.0**127, 0x7FC00000)

# By Triton's name of the type: those kept as bits, for which numpy has no arithmetic.
KEPT_AS_BITS = {format.name: format for format in (BF16, E4M3, E5M2)}

_HALF_SCALE = 256.0  # e4m3 has fp16's exponent less this: 2^(15 − 7)


def _e4m3_values() -> np.ndarray:
    code = np.arange(256, dtype=np.uint16)
    halfs = ((code & 0x80) << 8 | (code & 0x7F) << 7).view(np.float16)
    values = halfs.astype(np.float32) * np.float32(_HALF_SCALE)
    values[[0x7F, 0xFF]] = np.nan
    return values


E4M3_VALUES = _e4m3_values()
E5M2_VALUES = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] * 2, dtype=np.float32)
E2M1_VALUES[8:] *= -1


def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The float32 numbers that bf16, e4m3 or e5m2 ``codes`` stand for; exact."""
    if format is BF16:
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return (E4M3_VALUES if format is E4M3 else E5M2_VALUES)[codes]


def encode(values: np.ndarray, format: Format, toward_zero: bool = False) -> np.ndarray:
    """``values`` (any float type) rounded once to ``format``, as its bits. ``toward_zero``: cut off, not to nearest."""
    values = np.asarray(values)
    if format is BF16 and values.dtype == np.float32 and not toward_zero:
        return _float32_to_bf16(values)
    wide = values.astype(np.float64)
    # A number in [2^(e−1), 2^e) lies on the grid of 2^(e−1−mantissa); below the smallest normal the grid stays.
    grid = np.maximum(np.frexp(wide)[1] - 1, format.min_exponent) - format.mantissa
    steps = np.ldexp(wide, -grid)
    rounded = np.ldexp(np.trunc(steps) if toward_zero else np.rint(steps), grid)
    beyond = np.abs(rounded) > format.largest
    if not format.saturates:
        beyond &= toward_zero & np.isfinite(wide)
        rounded = np.where((np.abs(rounded) > format.largest) & ~beyond, np.copysign(np.inf, rounded), rounded)
    rounded = np.where(beyond, np.copysign(format.largest, rounded), rounded)
    codes = _bits_of(rounded, format)
    return np.where(np.isnan(wide), format.bits.type(format.nan), codes)


def _bits_of(exact: np.ndarray, format: Format) -> np.ndarray:
    """The bits of numbers that are in ``format`` already."""
    if format is FP32:
        return exact.astype(np.float32).view(np.uint32)
    if format is BF16:
        return (exact.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if format is FP16:
        return exact.astype(np.float16).view(np.uint16)
    if format is E5M2:
        return (exact.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    halfs = (exact / _HALF_SCALE).astype(np.float16).view(np.uint16)
    return (halfs >> 8 & 0x80 | (halfs & 0x7FFF) >> 7).astype(np.uint8)


def _float32_to_bf16(values: np.ndarray) -> np.ndarray:
    """The usual case in integers: half a step, less one where the kept part is even, is added and the rest cut off."""
    bits = values.view(np.uint32)
    codes = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(BF16.nan), codes)


def round_to_tf32(values: np.ndarray) -> np.ndarray:
    """float32 with 10 bits after the point, nearest with ties away from zero, as `cvt.rna.tf32.f32`."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x1000) & 0xFFFFE000).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def e8m0(codes: np.ndarray) -> np.ndarray:
    """MX scales: 2^(code − 127) in float64, 255 is NaN."""
    powers = np.ldexp(1.0, codes.astype(np.uint8).astype(np.int32) - 127)
    return np.where(codes.astype(np.uint8) == 255, np.nan, powers)


def unpack_e2m1(packed: np.ndarray, axis: int) -> np.ndarray:
    """Two fp4 numbers a byte, the low nibble first, along ``axis``: float32, twice as long there."""
    packed = np.moveaxis(packed.astype(np.uint8), axis, -1)
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return np.moveaxis(E2M1_VALUES[nibbles], -1, axis)
