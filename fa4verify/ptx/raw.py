"""Memory by address, for compiled code: the machine's registers, shared memory and the tensors of the caller.

Contract: nothing here checks a bound; `memory.py` does, before it calls. Loads and stores need no alignment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_KINDS: dict[Any, Any] = {
    types.uint8: ir.IntType(8),
    types.uint16: ir.IntType(16),
    types.uint32: ir.IntType(32),
    types.int32: ir.IntType(32),
    types.uint64: ir.IntType(64),
    types.int64: ir.IntType(64),
    types.float32: ir.FloatType(),
}


def _pointer(context: Any, builder: Any, address: Any, kind: Any, element: Any) -> Any:
    return builder.inttoptr(context.cast(builder, address, kind, types.int64), element.as_pointer())


def _load(kind: Any, name: str) -> Any:
    def typed(_typing_context: Any, address: Any) -> tuple[Any, Any]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_pointer(context, builder, arguments[0], signature.args[0], _KINDS[kind]), align=1)

        return kind(address), codegen

    typed.__name__ = name
    return intrinsic(typed)


def _store(kind: Any, name: str) -> Any:
    def typed(_typing_context: Any, address: Any, value: Any) -> tuple[Any, Any]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = context.cast(builder, arguments[1], signature.args[1], kind)
            builder.store(stored, _pointer(context, builder, arguments[0], signature.args[0], _KINDS[kind]), align=1)
            return context.get_dummy_value()

        return types.void(address, value), codegen

    typed.__name__ = name
    return intrinsic(typed)


load_u8, store_u8 = _load(types.uint8, "load_u8"), _store(types.uint8, "store_u8")
load_u16, store_u16 = _load(types.uint16, "load_u16"), _store(types.uint16, "store_u16")
load_u32, store_u32 = _load(types.uint32, "load_u32"), _store(types.uint32, "store_u32")
load_i32, store_i32 = _load(types.int32, "load_i32"), _store(types.int32, "store_i32")
load_u64, store_u64 = _load(types.uint64, "load_u64"), _store(types.uint64, "store_u64")
load_i64, store_i64 = _load(types.int64, "load_i64"), _store(types.int64, "store_i64")
load_f32, store_f32 = _load(types.float32, "load_f32"), _store(types.float32, "store_f32")


def _copy_bytes(_typing_context: Any, to: Any, source: Any, length: Any) -> tuple[Any, Any]:
    """Copy `length` bytes; the ranges may overlap."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        target, origin = (_pointer(context, builder, arguments[i], signature.args[i], byte) for i in (0, 1))
        count = context.cast(builder, arguments[2], signature.args[2], types.int64)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), byte.as_pointer(), ir.IntType(64), ir.IntType(1)])
        move = builder.module.declare_intrinsic(
            "llvm.memmove", [byte.as_pointer(), byte.as_pointer(), ir.IntType(64)], kind
        )
        builder.call(move, [target, origin, count, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(to, source, length), codegen


copy_bytes: Any = intrinsic(_copy_bytes)


@njit(cache=True, inline="always")
def address_of(array):  # type: ignore[no-untyped-def]
    """Address of an array's first element."""
    return np.int64(array.ctypes.data)
