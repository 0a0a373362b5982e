"""Floats as integers and back, inside numba code.

Contract: reinterpretation, never conversion; the width follows the argument's type. Numba's own `.view` does not take
scalar variables, and writing through a buffer costs the loops that use this their vectorisation.
Known failure mode: numba adds two uint32 to a uint64, so `float_of` takes an integer of any width and keeps the low
bits that the type of `like` has room for.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INTEGERS: dict[Any, Any] = {types.float32: types.uint32, types.float64: types.uint64}


def _bits_of(_typing_context: Any, x: Any) -> tuple[Any, Any]:
    """Return the bits of a float32 as uint32, of a float64 as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return _INTEGERS[x](x), generate


def _float_of(_typing_context: Any, bits: Any, like: Any) -> tuple[Any, Any]:
    """Return the float of the type of `like` whose bits are the low bits of `bits`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = ir.IntType(signature.return_type.bitwidth)
        value = arguments[0]
        value = builder.trunc(value, target) if value.type.width > target.width else builder.zext(value, target)
        return builder.bitcast(value, context.get_value_type(signature.return_type))

    return like(bits, like), generate


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
bits_of: Any = intrinsic(_bits_of)
float_of: Any = intrinsic(_float_of)
