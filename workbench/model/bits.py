"""Bits that one stored number takes, by the name of its format. Block formats include their scales, hence fractions.

No torch: the name alone is enough. Sources: the safetensors names, the GGUF block layouts (bytes of a block × 8 ÷
numbers in it), OCP MX 1.0 (32 numbers share one 8-bit scale) and NVFP4 (16 numbers share one FP8 scale).
"""

from __future__ import annotations

from workbench.errors import UsageError

BITS: dict[str, float] = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
    "uint4": 4,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "q4_0": 18 * 8 / 32,
    "q4_1": 20 * 8 / 32,
    "q5_0": 22 * 8 / 32,
    "q5_1": 24 * 8 / 32,
    "q8_0": 34 * 8 / 32,
    "q2_k": 84 * 8 / 256,
    "q3_k": 110 * 8 / 256,
    "q4_k": 144 * 8 / 256,
    "q5_k": 176 * 8 / 256,
    "q6_k": 210 * 8 / 256,
}

_SHORT = {
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
}
_SHORT |= {"fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def bits_of(dtype: str | float) -> float:
    """Bits per number. ``dtype`` is a name such as ``bfloat16`` or ``q4_k``, or the bits themselves (4.5).

    Raises UsageError for a name that is not known or bits that are not above 0.
    """
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.").lower()
        name = _SHORT.get(name, name)
        if name not in BITS:
            raise UsageError(f"dtype {dtype!r} is not known; choose from {', '.join(BITS)} or give a number of bits")
        return float(BITS[name])
    if not dtype > 0:
        raise UsageError(f"{dtype!r} bits per number must be above 0")
    return float(dtype)
