"""A State behind one pointer, so that compiled functions hand it on in a register.

Contract: `machine_at(address)` gives compiled code an object with the attributes of a State, each an array that borrows
its memory; `table_of` gives the address back; `pack` writes the table there. The table must not change while compiled
code runs, and whoever packed it must keep the State alive.
Why: a State by value is some 300 words, and a call that hands it on took 90 ns; the table takes 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model
from numba.np.arrayobj import make_array, populate_array

from fa4verify.ptx.state import State

if TYPE_CHECKING:
    import numpy.typing as npt

_WORDS = 5  # a field: address, then up to four lengths


class Handle(types.Type):  # type: ignore[misc]
    """Numba's type of a pointer to a table of arrays."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = fields
        super().__init__(name=f"Handle({name}, {', '.join(f'{field}: {kind}' for field, kind in fields)})")

    def index(self, attribute: str) -> int:
        """Position of a field in the table."""
        return [field for field, _ in self.fields].index(attribute)


register_model(Handle)(models.OpaqueModel)


class _Attributes(AttributeTemplate):  # type: ignore[misc]
    key = Handle

    def generic_resolve(self, handle: Handle, attribute: str) -> Any:
        return dict(handle.fields).get(attribute)


infer_getattr(_Attributes)


def _word(builder: Any, base: Any, index: int) -> Any:
    place = builder.gep(builder.bitcast(base, ir.IntType(64).as_pointer()), [ir.IntType(64)(index)])
    word = builder.load(place)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def _attribute(context: Any, builder: Any, handle: Handle, base: Any, attribute: str) -> Any:
    index = handle.index(attribute)
    kind = handle.fields[index][1]
    address = _word(builder, base, _WORDS * index)
    shape = [_word(builder, base, _WORDS * index + 1 + i) for i in range(kind.ndim)]
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [ir.IntType(64)(size)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = make_array(kind)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue()


lower_getattr_generic(Handle)(_attribute)


def _array(dtype: Any, dimensions: int) -> Any:
    return types.Array(dtype, dimensions, "C")


_DTYPES = {"pool": types.int32, "registers": types.uint32, "predicates": types.uint32, "tensor": types.uint32}
_DTYPES |= dict.fromkeys(("shared", "local", "parameters", "stage"), types.uint8)
_DIMENSIONS = {"registers": 4, "pool": 1, "parameters": 1, "fault": 1, "counts": 1, "knobs": 1, "stage": 1, "units": 1}
_DIMENSIONS |= dict.fromkeys(("code", "ctas", "shared", "memory", "steps"), 2)
MACHINE = Handle(
    "State",
    tuple((field, _array(_DTYPES.get(field, types.int64), _DIMENSIONS.get(field, 3))) for field in State._fields),
)


def _machine_at(_typing_context: Any, address: Any) -> tuple[Any, Any]:
    """Return the State whose table lies at an address."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = context.cast(builder, arguments[0], signature.args[0], types.int64)
        return builder.inttoptr(word, ir.IntType(8).as_pointer())

    return MACHINE(address), codegen


def _table_of(_typing_context: Any, state: Any) -> tuple[Any, Any]:
    """Return the address that `machine_at` was given."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.int64(state), codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
machine_at: Any = intrinsic(_machine_at)
table_of: Any = intrinsic(_table_of)


def pack(state: State) -> npt.NDArray[np.int64]:
    """Return the table of a State."""
    table = np.zeros(_WORDS * len(MACHINE.fields), np.int64)
    for index, (field, kind) in enumerate(MACHINE.fields):
        item = getattr(state, field)
        if item.dtype != np.dtype(str(kind.dtype)) or item.ndim != kind.ndim or not item.flags.c_contiguous:
            raise TypeError(f"{field} is {item.dtype}, {item.ndim} dimensions; the machine wants {kind}")
        place = _WORDS * index
        table[place] = item.ctypes.data
        table[place + 1 : place + 1 + item.ndim] = item.shape
    return table
