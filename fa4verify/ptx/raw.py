"""Memory by address, for compiled code: the machine's registers, shared memory and the tensors of the caller.

Contract: nothing here checks a bound; `memory.py` does, before it calls. Loads and stores need no alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

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


def _address_of(_typing_context: Any, array: Any) -> tuple[Any, Any]:
    """Address of an array's first element; an intrinsic, since numba would compile a function for each array's type."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


address_of: Any = intrinsic(_address_of)


def _scratch(_typing_context: Any) -> tuple[Any, Any]:
    """Address of 512 bytes on the caller's stack, aligned to 64: a place of its own for every call written."""

    def codegen(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        place: Any = cgutils.alloca_once  # untyped
        pointer = place(builder, ir.VectorType(ir.IntType(64), 64))
        pointer.align = 64
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(), codegen


scratch: Any = intrinsic(_scratch)


def _view(kind: Any, name: str) -> Any:
    def typed(_typing_context: Any, address: Any, count: Any) -> tuple[Any, Any]:
        """Return an array of `count` elements at an address: LLVM vectorises loops over it, not over addresses."""
        array_type = types.Array(kind, 1, "C")

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = _new_array(array_type)(context, builder)
            width = kind.bitwidth // 8
            _populate(
                array,
                data=_pointer(context, builder, arguments[0], signature.args[0], _KINDS[kind]),
                shape=_packed(builder, [context.cast(builder, arguments[1], signature.args[1], types.int64)]),
                strides=_packed(builder, [ir.IntType(64)(width)]),
                itemsize=width,
                meminfo=None,
            )
            return array._getvalue()

        return array_type(address, count), codegen

    typed.__name__ = name
    return intrinsic(typed)


# Numba's own functions have no types.
_new_array: Any = make_array
_populate: Any = populate_array
_packed: Any = cgutils.pack_array
view_f32, view_u32 = _view(types.float32, "view_f32"), _view(types.uint32, "view_u32")
