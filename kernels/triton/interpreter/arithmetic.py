"""The interpreter's arithmetic as a GPU does it: bf16 and fp8 are numbers here, not the integers that hold them.

Each function of `BUILDER` stands in for the method of that name of Triton's `InterpreterBuilder`. An operation on bf16
or fp8 decodes to float32, computes, and rounds once; for + − × ÷ and √ of bf16 that is the correctly rounded result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.triton.interpreter.formats import (
    BF16,
    FP16,
    FP32,
    KEPT_AS_BITS,
    Format,
    decode,
    e8m0,
    encode,
    round_to_tf32,
    unpack_e2m1,
)

ir = interpreter._ir
memory = interpreter._interpreter
# fp8 of other makes (AMD's, and e4m3 with bias 15): left to Triton.
_LEFT_TO_TRITON = {"fp8e4b15", "fp8e4b8", "fp8e5b16"}
_triton_cast = InterpreterBuilder.cast_impl
_triton_fp_to_fp = InterpreterBuilder.create_fp_to_fp
_triton_atomic_rmw = InterpreterBuilder.create_atomic_rmw


def format_of(handle: TensorHandle) -> Format | None:
    """The format of a handle whose data are codes; None where numpy's type is the number itself."""
    format = KEPT_AS_BITS.get(handle.dtype.scalar.name)
    return format if format is not None and handle.data.dtype == format.bits else None


def values(handle: TensorHandle) -> np.ndarray:
    """The numbers of a handle: float32 for bf16 and fp8, otherwise its data."""
    format = format_of(handle)
    return handle.data if format is None else decode(handle.data, format)


def as_handle(output: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """``output`` as a tensor of the scalar type ``dtype``; what a comparison gives is int1 whatever was compared."""
    output = np.asarray(output)
    if output.dtype == np.bool_:
        return TensorHandle(output, tl.int1)
    format = KEPT_AS_BITS.get(dtype.name)
    if format is not None:
        return TensorHandle(encode(output, format), dtype)
    wanted = interpreter._get_np_dtype(dtype)
    return TensorHandle(output if output.dtype == wanted else output.astype(wanted), dtype)


def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., np.ndarray]) -> TensorHandle:
    if lhs.data.dtype == np.bool_ and rhs.data.dtype == np.bool_:
        # numpy's booleans saturate (True + True is True); an int1 wraps around.
        return TensorHandle((op(lhs.data.astype(np.int8), rhs.data.astype(np.int8)) & 1).astype(np.bool_), tl.int1)
    return as_handle(op(values(lhs), values(rhs)), lhs.dtype.scalar)


def unary_op(self, arg: TensorHandle, op: Callable[..., np.ndarray]) -> TensorHandle:
    return as_handle(op(values(arg)), arg.dtype.scalar)


def create_minnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
    """`tl.minimum` as it is without `propagate_nan`: the other number where one is NaN."""
    return binary_op(self, lhs, rhs, np.fmin)


def create_maxnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
    return binary_op(self, lhs, rhs, np.fmax)


def create_clampf(self, arg: TensorHandle, lo: TensorHandle, hi: TensorHandle, propagate_nans) -> TensorHandle:
    lower, upper = (np.fmax, np.fmin) if propagate_nans == ir.PROPAGATE_NAN.NONE else (np.maximum, np.minimum)
    return as_handle(upper(lower(values(arg), values(lo)), values(hi)), arg.dtype.scalar)


def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
    """x·y + z rounded once. Up to float32 the product is exact in float64; its sum is rounded there to odd, after which
    the rounding to the smaller type is the only one that shows. float64 itself is rounded twice."""
    a, b, c = (values(each).astype(np.float64) for each in (x, y, z))
    product = a * b
    total = product + c
    if z.dtype.scalar != tl.float64:
        back = total - product
        lost = (product - (total - back)) + (c - back)  # Knuth's two-sum: what the addition left out
        even = (np.ascontiguousarray(total).view(np.uint64) & 1 == 0) & (lost != 0) & np.isfinite(total)
        total = np.where(even, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return as_handle(total, z.dtype.scalar)


def cast_impl(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
    target = dst_type.scalar
    if _LEFT_TO_TRITON & {target.name, src.dtype.scalar.name}:
        return _triton_cast(self, src, dst_type)
    numbers = values(src)
    format = KEPT_AS_BITS.get(target.name)
    if format is None:
        return TensorHandle(numbers.astype(interpreter._get_np_dtype(target)), target)
    # Whole numbers become bf16 by way of float32, as in Triton's own lowering.
    return TensorHandle(encode(numbers if numbers.dtype.kind == "f" else numbers.astype(np.float32), format), target)


def create_fp_to_fp(self, src: TensorHandle, dst_type: tl.dtype, rounding_mode) -> TensorHandle:
    target = dst_type.scalar
    if _LEFT_TO_TRITON & {target.name, src.dtype.scalar.name}:
        return _triton_fp_to_fp(self, src, dst_type, rounding_mode)
    if rounding_mode != ir.ROUNDING_MODE.RTZ:
        return cast_impl(self, src, dst_type)
    format = {**KEPT_AS_BITS, "fp16": FP16, "fp32": FP32}[target.name]
    codes = encode(values(src), format, toward_zero=True)
    return TensorHandle(codes.view(interpreter._get_np_dtype(target)), target)


def get_bf16(self, value: float) -> TensorHandle:
    """A Python number beside a bf16 tensor."""
    return TensorHandle(encode(np.array([value], dtype=np.float32), BF16), tl.bfloat16)


def create_dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision, _imprecise) -> TensorHandle:
    """d + a @ b, rounded to d's type once. Halfs, bf16 and fp8 multiply exactly and are added up in float32; float32 is
    first rounded to tf32 unless the kernel asks for more, as a GPU does by default. Not modelled: Hopper adds fp8 up in
    about 14 bits."""
    x, y = values(a), values(b)
    if a.dtype.scalar.is_int():
        # Exact in float64, which numpy multiplies fast: at most 2^14 a product, so fewer than 2^39 of them.
        total = np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64) + d.data
        return as_handle(total, d.dtype.scalar)
    if x.dtype != np.float64:
        x, y = x.astype(np.float32), y.astype(np.float32)
    if a.dtype.scalar == tl.float32 and input_precision == ir.INPUT_PRECISION.TF32:
        x, y = round_to_tf32(x), round_to_tf32(y)
    return as_handle(np.matmul(x, y) + d.data.astype(x.dtype), d.dtype.scalar)


def create_dot_scaled(
    self,
    lhs: TensorHandle,
    lhs_scale: TensorHandle | None,
    lhs_format,
    rhs: TensorHandle,
    rhs_scale: TensorHandle | None,
    rhs_format,
    fast_math: bool,
    lhs_k_pack: bool,
    rhs_k_pack: bool,
    acc: TensorHandle,
) -> TensorHandle:
    """acc + (lhs · scales) @ (rhs · scales) of the MX and NVFP4 formats, in float64, rounded once. A group is as many
    elements of K as share a scale. Not modelled: on Hopper the scaled operands pass through bf16 (or fp16), so a scaled
    number beyond their range is lost there."""
    x = _scaled(lhs, lhs_scale, lhs_format, -1 if lhs_k_pack else -2, along_k=-1)
    y = _scaled(rhs, rhs_scale, rhs_format, -2 if rhs_k_pack else -1, along_k=-2)
    return as_handle(np.matmul(x, y) + values(acc).astype(np.float64), acc.dtype.scalar)


def _scaled(operand: TensorHandle, scale: TensorHandle | None, format, packed_axis: int, along_k: int) -> np.ndarray:
    """An operand's numbers in float64; ``scale`` is [rows, K / group] for both operands, so the right one's is turned.
    One-byte scales are E8M0 unless they are e4m3 by type."""
    packed = format == ir.ScaleDotElemTypeTY.E2M1
    numbers = (unpack_e2m1(operand.data, packed_axis) if packed else values(operand)).astype(np.float64)
    if scale is None:
        return numbers
    factors = e8m0(scale.data) if scale.dtype.scalar.is_int() else values(scale).astype(np.float64)
    factors = np.repeat(factors, numbers.shape[along_k] // factors.shape[-1], axis=-1)
    return numbers * (factors if along_k == -1 else np.swapaxes(factors, -1, -2))


def create_atomic_rmw(self, op, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem, scope) -> TensorHandle:
    """Triton's own, but for the addition of bf16, which it has not: lane by lane, each sum rounded."""
    if op != ir.ATOMIC_OP.FADD or format_of(val) is not BF16:
        return _triton_atomic_rmw(self, op, ptr, val, mask, sem, scope)
    shape = ptr.data.shape
    addends, active = np.broadcast_to(values(val), shape), np.broadcast_to(mask.data, shape)
    before = np.zeros(shape, dtype=np.uint16)
    one = np.ones(1, dtype=bool)
    for lane in map(tuple, np.argwhere(active)):
        address = ptr.data[lane].reshape(1)
        old = memory.load(address, one, np.zeros(1, dtype=np.uint16), BF16.bits)
        memory.store(address, encode(decode(old, BF16) + addends[lane], BF16), one)
        before[lane] = old[0]
    return TensorHandle(before, tl.bfloat16)


BUILDER: dict[str, Callable[..., TensorHandle]] = {
    function.__name__: function
    for function in (
        binary_op,
        unary_op,
        create_minnumf,
        create_maxnumf,
        create_clampf,
        create_fma,
        cast_impl,
        create_fp_to_fp,
        get_bf16,
        create_dot,
        create_dot_scaled,
        create_atomic_rmw,
    )
}
