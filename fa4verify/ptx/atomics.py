"""Memory that several threads change at once: global memory of the caller, and the workers' own counters.

Contract: `update` returns the value before; every function is one indivisible step on naturally aligned memory, in an
order that all threads agree on. Floating-point sums are exchanged until nobody came between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.ptx.operations import Atomic

_ORDER = "seq_cst"


def _pointer(context: Any, builder: Any, address: Any, kind: Any, bits: int) -> Any:
    return builder.inttoptr(context.cast(builder, address, kind, types.int64), ir.IntType(bits).as_pointer())


def _modify(operation: str, bits: int, name: str) -> Any:
    result = types.int64 if bits == 64 else types.uint32

    def typed(_typing_context: Any, address: Any, value: Any) -> tuple[Any, Any]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = _pointer(context, builder, arguments[0], signature.args[0], bits)
            operand = context.cast(builder, arguments[1], signature.args[1], result)
            return builder.atomic_rmw(operation, place, operand, _ORDER)

        return result(address, value), codegen

    typed.__name__ = name
    return intrinsic(typed)


def _exchange(bits: int, name: str) -> Any:
    result = types.int64 if bits == 64 else types.uint32

    def typed(_typing_context: Any, address: Any, expected: Any, value: Any) -> tuple[Any, Any]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = _pointer(context, builder, arguments[0], signature.args[0], bits)
            old, new = (context.cast(builder, arguments[i], signature.args[i], result) for i in (1, 2))
            return builder.extract_value(builder.cmpxchg(place, old, new, _ORDER), 0)

        return result(address, expected, value), codegen

    typed.__name__ = name
    return intrinsic(typed)


def _fence(_typing_context: Any) -> tuple[Any, Any]:
    """Order what came before against what comes after."""

    def codegen(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), codegen


add64 = _modify("add", 64, "add64")
_add32, _swap32, _swap64 = _modify("add", 32, "add32"), _modify("xchg", 32, "swap32"), _modify("xchg", 64, "swap64")
_min_s32, _max_s32 = _modify("min", 32, "min_s32"), _modify("max", 32, "max_s32")
_min_u32, _max_u32 = _modify("umin", 32, "min_u32"), _modify("umax", 32, "max_u32")
_and32, _or32, _xor32 = _modify("and", 32, "and32"), _modify("or", 32, "or32"), _modify("xor", 32, "xor32")
_compare32, _compare64 = _exchange(32, "compare32"), _exchange(64, "compare64")
fence: Any = intrinsic(_fence)

ADD_U32, ADD_S32, ADD_F32, ADD_U64 = (int(Atomic[x]) for x in ("ADD_U32", "ADD_S32", "ADD_F32", "ADD_U64"))
MIN_S32, MAX_S32, MIN_U32, MAX_U32 = (int(Atomic[x]) for x in ("MIN_S32", "MAX_S32", "MIN_U32", "MAX_U32"))
AND_B32, OR_B32, XOR_B32 = (int(Atomic[x]) for x in ("AND_B32", "OR_B32", "XOR_B32"))
EXCH_B32, CAS_B32, INC_U32 = (int(Atomic[x]) for x in ("EXCH_B32", "CAS_B32", "INC_U32"))
ADD_F64, EXCH_B64, CAS_B64 = (int(Atomic[x]) for x in ("ADD_F64", "EXCH_B64", "CAS_B64"))
SUPPORTED = frozenset((ADD_U32, ADD_S32, ADD_F32, ADD_U64, MIN_S32, MAX_S32, MIN_U32, MAX_U32, AND_B32, OR_B32, XOR_B32,
                       EXCH_B32, CAS_B32, INC_U32, ADD_F64, EXCH_B64, CAS_B64))  # fmt: skip


@njit(cache=True)
def _add_f32(address, value):  # type: ignore[no-untyped-def]
    zero = np.float32(0.0)
    expected = np.uint32(_add32(address, 0))
    while True:
        total = float_of(expected, zero) + float_of(np.uint32(value), zero)
        new = bits_of(total) if total == total else np.uint32(0x7FFFFFFF)
        seen = np.uint32(_compare32(address, expected, new))
        if seen == expected:
            return np.int64(seen)
        expected = seen


@njit(cache=True)
def _add_f64(address, value):  # type: ignore[no-untyped-def]
    expected = np.int64(add64(address, 0))
    while True:
        new = np.int64(bits_of(float_of(expected, 0.0) + float_of(value, 0.0)))
        seen = np.int64(_compare64(address, expected, new))
        if seen == expected:
            return seen
        expected = seen


@njit(cache=True)
def _increase(address, limit):  # type: ignore[no-untyped-def]
    expected = np.uint32(_add32(address, 0))
    while True:
        new = np.uint32(0) if expected >= np.uint32(limit) else np.uint32(expected + np.uint32(1))
        seen = np.uint32(_compare32(address, expected, new))
        if seen == expected:
            return np.int64(seen)
        expected = seen


@njit(cache=True)
def update(operation, address, value, second):  # type: ignore[no-untyped-def]
    """Apply an `Atomic` to memory and return the bits that were there; `value` and `second` are bits as int64.

    cas: `value` is what must be there, `second` what replaces it.
    """
    if operation in (ADD_U32, ADD_S32):
        return np.int64(_add32(address, value))
    if operation == ADD_F32:
        return _add_f32(address, value)
    if operation == ADD_U64:
        return np.int64(add64(address, value))
    if operation == MIN_S32:
        return np.int64(_min_s32(address, value))
    if operation == MAX_S32:
        return np.int64(_max_s32(address, value))
    if operation == MIN_U32:
        return np.int64(_min_u32(address, value))
    if operation == MAX_U32:
        return np.int64(_max_u32(address, value))
    if operation == AND_B32:
        return np.int64(_and32(address, value))
    if operation == OR_B32:
        return np.int64(_or32(address, value))
    if operation == XOR_B32:
        return np.int64(_xor32(address, value))
    if operation == EXCH_B32:
        return np.int64(_swap32(address, value))
    if operation == CAS_B32:
        return np.int64(_compare32(address, value, second))
    if operation == INC_U32:
        return _increase(address, value)
    if operation == ADD_F64:
        return _add_f64(address, value)
    if operation == EXCH_B64:
        return np.int64(_swap64(address, value))
    return np.int64(_compare64(address, value, second))
