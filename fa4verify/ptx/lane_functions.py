"""Lane operations that run lane by lane: MUFU, rounding to 16 and 8 bits, directed rounding, flushing, division.

Contract: `ENTRIES` lists (names, results, operands), family after family: approximations, other sums and products in
fp32, codes of 16 bits, integers. A family's function runs the operation of an index on all 32 lanes and then writes
those of the mask. The arithmetic is `fa4verify.arithmetic`'s; here are only loops, bit moves, and what PTX
leaves open: an integer divided by zero gives all ones, and so does its remainder.
ex2.approx.f32 without .ftz halves an operand below -126 before MUFU and squares the result, as ptxas writes it.
Numbers: tests/golden/opcodes_h200.json holds what an H200 answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fa4verify.arithmetic.bits import bits_of
from fa4verify.arithmetic.fma import add_ftz, add_rm, add_rm_ftz, fma_ftz, mul_ftz
from fa4verify.arithmetic.formats import code_e4m3, code_e5m2, round_bf16, round_fp16
from fa4verify.arithmetic.mufu import ex2, lg2, rcp
from fa4verify.arithmetic.mufu_tanh import tanh
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.inner import inner
from fa4verify.ptx.lane_ir import I64, LANES, SLOT_BYTES, Lanes, Slots, vector
from fa4verify.ptx.operations import Column
from fa4verify.ptx.raw import (
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    load_u64,
    scratch,
    store_u32,
    store_u64,
    view_f32,
    view_u32,
)  # fmt: skip

_F, _U = ("f32",), ("b32",)
ENTRIES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("ex2.approx.ftz.f32",), _F, _F),
    (("ex2.approx.f32",), _F, _F),
    (("rcp.approx.ftz.f32",), _F, _F),
    (("lg2.approx.ftz.f32",), _F, _F),
    (("add.rm.f32x2",), ("f32x2",), ("f32x2",) * 2),
    (("tanh.approx.f32",), _F, _F),
    (("add.rm.f32",), _F, _F * 2),
    (("add.rm.ftz.f32",), _F, _F * 2),
    (("add.ftz.f32", "add.rn.ftz.f32"), _F, _F * 2),
    (("sub.ftz.f32", "sub.rn.ftz.f32"), _F, _F * 2),
    (("mul.ftz.f32", "mul.rn.ftz.f32"), _F, _F * 2),
    (("fma.rn.ftz.f32",), _F, _F * 3),
    (("cvt.rn.bf16.f32",), ("bf16",), _F),
    (("cvt.rn.bf16x2.f32",), ("bf16x2",), _F * 2),
    (("cvt.rn.f16.f32",), ("f16",), _F),
    (("cvt.rn.f16x2.f32",), ("f16x2",), _F * 2),
    (("cvt.rn.satfinite.e4m3x2.f32",), ("b16",), _F * 2),
    (("cvt.rn.satfinite.e5m2x2.f32",), ("b16",), _F * 2),
    (("prmt.b32",), _U, _U * 3),
    (("dp2a.lo.u32.s32",), _U, _U * 3),
    (("div.u32",), _U, _U * 2),
    (("rem.u32",), _U, _U * 2),
    (("div.s32",), _U, _U * 2),
    (("rem.s32",), _U, _U * 2),
    (("div.u64",), ("b64",), ("b64",) * 2),
    (("rem.u64",), ("b64",), ("b64",) * 2),
    (("div.s64",), ("b64",), ("b64",) * 2),
    (("rem.s64",), ("b64",), ("b64",) * 2),
    (("div.u16",), ("b16",), ("b16",) * 2),
    (("rem.u16",), ("b16",), ("b16",) * 2),
    (("mul.hi.u64",), ("b64",), ("b64",) * 2),
    (("mul.hi.s64",), ("b64",), ("b64",) * 2),
    (("lop3.b32",), _U, _U * 4),
)
(_EX2, _EX2_KEEP, _RCP, _LG2, _ADD_RM_X2, _TANH, _ADD_RM, _ADD_RM_FTZ, _ADD_FTZ, _SUB_FTZ, _MUL_FTZ, _FMA_FTZ, _BF16,
 _BF16X2, _F16, _F16X2, _E4M3X2, _E5M2X2, _PRMT, _DP2A, _DIV_U32, _REM_U32, _DIV_S32, _REM_S32, _DIV_U64, _REM_U64,
 _DIV_S64, _REM_S64, _DIV_U16, _REM_U16, _MUL_HI_U64, _MUL_HI_S64, _LOP3) = range(len(ENTRIES))  # fmt: skip
SECOND_FAMILY, THIRD_FAMILY, LAST_FAMILY = _TANH, _BF16, _PRMT

_D, _A, _B, _C, _FOURTH = (8 * int(x) for x in (Column.D, Column.A, Column.B, Column.C, Column.F))
_WIDE = tuple(results[0] in ("b64", "f32x2") for _, results, _ in ENTRIES)
_IS_WIDE = np.array(_WIDE)
_CANONICAL_F32 = np.uint32(0x7FFFFFFF)
_CANONICAL_16 = np.uint32(0x7FFF)
_HALF, _LOWEST = np.float32(0.5), np.float32(-126.0)
_TO_HALF = np.float32(2.0**-112)
_ONES_32, _ONES_64 = np.uint32(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)


def _merge(wide: bool, name: str) -> Any:
    def typed(_typing_context: Any, registers: Any, slot: Any, source: Any, mask: Any) -> tuple[Any, Any]:
        """Copy 32 values from an address to a slot, in the lanes of a mask."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base, column, origin, word = (
                context.cast(builder, value, kind, types.int64)
                for value, kind in zip(arguments, signature.args, strict=True)
            )
            kind = vector(I64 if wide else ir.IntType(32))
            value = builder.load(builder.inttoptr(origin, kind.as_pointer()), align=64)
            Slots(Lanes(builder), base, None).write(column, value, builder.trunc(word, ir.IntType(32)))
            return context.get_dummy_value()

        return types.void(registers, slot, source, mask), codegen

    typed.__name__ = name
    return intrinsic(typed)


merge32, merge64 = _merge(False, "merge32"), _merge(True, "merge64")


@inner
def bf16_code(x):  # type: ignore[no-untyped-def]
    """Return the bf16 code of a float32, rounded to nearest; 0x7FFF for NaN."""
    rounded = np.uint32(bits_of(round_bf16(x)) >> np.uint32(16))
    return rounded if x == x else _CANONICAL_16


@inner
def fp16_code(x):  # type: ignore[no-untyped-def]
    """Return the fp16 code of a float32, rounded to nearest; 0x7FFF for NaN.

    2^-112 times the rounded value is exact, and its exponent field is fp16's.
    """
    rounded = round_fp16(x)
    magnitude = np.uint32(bits_of(abs(rounded) * _TO_HALF) >> np.uint32(13))
    magnitude = magnitude if abs(rounded) < np.float32(65536.0) else np.uint32(0x7C00)
    code = np.uint32(magnitude | ((bits_of(rounded) >> np.uint32(16)) & np.uint32(0x8000)))
    return code if x == x else _CANONICAL_16


@inner
def ex2_keep(x):  # type: ignore[no-untyped-def]
    """Return ex2.approx.f32: subnormal results are reached by a square."""
    low = x < _LOWEST
    y = ex2(x * _HALF if low else x)
    return y * y if low else y


@inner
def permute_bytes(a, b, selector):  # type: ignore[no-untyped-def]
    """Return prmt.b32, default mode: nibble i of the selector names byte i, its top bit spreads the sign."""
    both = np.uint64(a) | (np.uint64(b) << _SHIFT_32)
    result = np.uint32(0)
    for i in range(4):
        nibble = (np.uint32(selector) >> np.uint32(4 * i)) & np.uint32(15)
        byte = np.uint32((both >> np.uint64(8 * (nibble & np.uint32(7)))) & np.uint64(255))
        if nibble & np.uint32(8):
            byte = np.uint32(255) if byte & np.uint32(128) else np.uint32(0)
        result |= np.uint32(byte << np.uint32(8 * i))
    return result


@inner
def _logic(a, b, c, table):  # type: ignore[no-untyped-def]
    """Return lop3: bit 4 a + 2 b + c of the table, bit by bit."""
    result = np.uint32(0)
    for i in range(8):
        if (table >> np.uint32(i)) & np.uint32(1):
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            z = c if i & 1 else ~c
            result |= np.uint32(x & y & z)
    return result


@inner
def _high_product(a, b):  # type: ignore[no-untyped-def]
    """Return the upper 64 bits of an unsigned product."""
    a0, a1, b0, b1 = a & _LOW, a >> _SHIFT_32, b & _LOW, b >> _SHIFT_32
    middle = a1 * b0 + ((a0 * b0) >> _SHIFT_32)
    low = (middle & _LOW) + a0 * b1
    return a1 * b1 + (middle >> _SHIFT_32) + (low >> _SHIFT_32)


@inner
def _divide(a, b, remainder):  # type: ignore[no-untyped-def]
    """Return quotient or remainder of two int64, truncated; the smallest number by -1 wraps."""
    if b == 0:
        return np.int64(-1)
    if b == -1:
        return np.int64(0) if remainder else np.int64(0) - a
    quotient = abs(np.uint64(a) if a > 0 else np.uint64(0) - np.uint64(a)) // (
        np.uint64(b) if b > 0 else np.uint64(0) - np.uint64(b)
    )
    signed = np.int64(quotient) if (a < 0) == (b < 0) else np.int64(0) - np.int64(quotient)
    return a - signed * b if remainder else signed


@inner
def _canonical(out, count):  # type: ignore[no-untyped-def]
    """Give every NaN the one code that the hardware has."""
    values, words = view_f32(out, 2 * LANES), view_u32(out, 2 * LANES)
    for i in range(count):
        value = values[i]
        words[i] = bits_of(value) if value == value else _CANONICAL_F32


@inner
def _approximations(index, a, b, out):  # type: ignore[no-untyped-def]
    """Run what a softmax asks of MUFU, or the sum that reduces its exponents."""
    x, y, result = view_f32(a, 2 * LANES), view_f32(b, 2 * LANES), view_f32(out, 2 * LANES)
    if index == _EX2:
        for i in range(LANES):
            result[i] = ex2(x[i])
    elif index == _EX2_KEEP:
        for i in range(LANES):
            result[i] = ex2_keep(x[i])
    elif index == _RCP:
        for i in range(LANES):
            result[i] = rcp(x[i])
    elif index == _LG2:
        for i in range(LANES):
            result[i] = lg2(x[i])
    else:
        for i in range(2 * LANES):
            result[i] = add_rm(x[i], y[i])
    _canonical(out, 2 * LANES if index == _ADD_RM_X2 else LANES)


@inner
def _floats(index, a, b, c, out):  # type: ignore[no-untyped-def]
    """Other operations on fp32 with an fp32 result."""
    x, y, z = view_f32(a, LANES), view_f32(b, LANES), view_f32(c, LANES)
    result = view_f32(out, LANES)
    if index == _TANH:
        for i in range(LANES):
            result[i] = tanh(x[i])
    elif index == _ADD_RM:
        for i in range(LANES):
            result[i] = add_rm(x[i], y[i])
    elif index == _ADD_RM_FTZ:
        for i in range(LANES):
            result[i] = add_rm_ftz(x[i], y[i])
    elif index == _ADD_FTZ:
        for i in range(LANES):
            result[i] = add_ftz(x[i], y[i])
    elif index == _SUB_FTZ:
        for i in range(LANES):
            result[i] = add_ftz(x[i], -y[i])
    elif index == _MUL_FTZ:
        for i in range(LANES):
            result[i] = mul_ftz(x[i], y[i])
    else:
        for i in range(LANES):
            result[i] = fma_ftz(x[i], y[i], z[i])
    _canonical(out, LANES)


@inner
def _codes(index, a, b, out):  # type: ignore[no-untyped-def]
    """Conversions to 16 and, in pairs, to 8 bits; the first operand of a pair goes to the upper half."""
    x, y, words = view_f32(a, LANES), view_f32(b, LANES), view_u32(out, LANES)
    if index == _BF16:
        for i in range(LANES):
            words[i] = bf16_code(x[i])
    elif index == _BF16X2:
        for i in range(LANES):
            high, low = bf16_code(x[i]), bf16_code(y[i])
            words[i] = np.uint32((high << np.uint32(16)) | low)
    elif index == _F16:
        for i in range(LANES):
            words[i] = fp16_code(x[i])
    elif index == _F16X2:
        for i in range(LANES):
            high, low = fp16_code(x[i]), fp16_code(y[i])
            words[i] = np.uint32((high << np.uint32(16)) | low)
    elif index == _E4M3X2:
        for i in range(LANES):
            high, low = code_e4m3(x[i]), code_e4m3(y[i])
            words[i] = np.uint32((high << np.uint32(8)) | low)
    else:
        for i in range(LANES):
            high, low = code_e5m2(x[i]), code_e5m2(y[i])
            words[i] = np.uint32((high << np.uint32(8)) | low)


@inner
def _words(index, a, b, c, fourth, i):  # type: ignore[no-untyped-def]
    """One lane of an operation on 32-bit or 16-bit integers."""
    x, y = load_u32(a + 4 * i), load_u32(b + 4 * i)
    if index == _PRMT:
        return permute_bytes(x, y, load_u32(c + 4 * i))
    if index == _DP2A:
        first = np.int64(x & np.uint32(0xFFFF)) * np.int64(np.int8(y & np.uint32(255)))
        second = np.int64(x >> np.uint32(16)) * np.int64(np.int8((y >> np.uint32(8)) & np.uint32(255)))
        return np.uint32(np.int64(load_u32(c + 4 * i)) + first + second)
    if index == _DIV_U32:
        return np.uint32(x // y) if y else _ONES_32
    if index == _REM_U32:
        return np.uint32(x % y) if y else _ONES_32
    if index in (_DIV_S32, _REM_S32):
        return np.uint32(_divide(np.int64(load_i32(a + 4 * i)), np.int64(load_i32(b + 4 * i)), index == _REM_S32))
    if index == _LOP3:
        return _logic(x, y, load_u32(c + 4 * i), load_u32(fourth + 4 * i))
    p, q = np.uint32(load_u16(a + 4 * i)), np.uint32(load_u16(b + 4 * i))
    if index == _DIV_U16:
        return np.uint32(p // q) if q else np.uint32(0xFFFF)
    return np.uint32(p % q) if q else np.uint32(0xFFFF)


@inner
def _longs(index, a, b, i):  # type: ignore[no-untyped-def]
    """One lane of an operation on 64-bit integers."""
    x, y = load_u64(a + 8 * i), load_u64(b + 8 * i)
    if index == _DIV_U64:
        return np.uint64(x // y) if y else _ONES_64
    if index == _REM_U64:
        return np.uint64(x % y) if y else _ONES_64
    if index in (_DIV_S64, _REM_S64):
        return np.uint64(_divide(load_i64(a + 8 * i), load_i64(b + 8 * i), index == _REM_S64))
    high = _high_product(x, y)
    if index == _MUL_HI_S64:
        high -= y if load_i64(a + 8 * i) < 0 else np.uint64(0)
        high -= x if load_i64(b + 8 * i) < 0 else np.uint64(0)
    return high


@inner
def _slot(registers, row, column):  # type: ignore[no-untyped-def]
    """Address of the slot that a column of a row names."""
    return registers + SLOT_BYTES * load_i64(row + column)


@by_address
def approximations(index, row, registers, mask):  # type: ignore[no-untyped-def]
    """Run an operation of the first family: index in ENTRIES, addresses of row and registers, lanes to write."""
    out = scratch()
    _approximations(index, _slot(registers, row, _A), _slot(registers, row, _B), out)
    if index == _ADD_RM_X2:
        merge64(registers, load_i64(row + _D), out, mask)
    else:
        merge32(registers, load_i64(row + _D), out, mask)
    return np.int64(0)


@by_address
def floats(index, row, registers, mask):  # type: ignore[no-untyped-def]
    """Run an operation of the second family."""
    out = scratch()
    _floats(index, _slot(registers, row, _A), _slot(registers, row, _B), _slot(registers, row, _C), out)
    merge32(registers, load_i64(row + _D), out, mask)
    return np.int64(0)


@by_address
def codes(index, row, registers, mask):  # type: ignore[no-untyped-def]
    """Run an operation of the third family."""
    out = scratch()
    _codes(index, _slot(registers, row, _A), _slot(registers, row, _B), out)
    merge32(registers, load_i64(row + _D), out, mask)
    return np.int64(0)


@by_address
def integers(index, row, registers, mask):  # type: ignore[no-untyped-def]
    """Run an operation of the last family."""
    out = scratch()
    a, b, c = _slot(registers, row, _A), _slot(registers, row, _B), _slot(registers, row, _C)
    fourth = _slot(registers, row, _FOURTH)
    if _IS_WIDE[index]:
        for i in range(LANES):
            store_u64(out + 8 * i, _longs(index, a, b, i))
        merge64(registers, load_i64(row + _D), out, mask)
    else:
        for i in range(LANES):
            store_u32(out + 4 * i, _words(index, a, b, c, fourth, i))
        merge32(registers, load_i64(row + _D), out, mask)
    return np.int64(0)
