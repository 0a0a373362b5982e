"""Floats as integers and back, inside numba code.

Contract: reinterpretation, never conversion; the width follows the argument's type. Numba's own `.view` does not take
scalars, and writing through a buffer costs the loops that use this their vectorisation.
Known failure mode: numba adds two uint32 to a uint64, so `float_of` takes an integer of any width and keeps the low
bits that the type of `like` has room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable


@intrinsic
def bits_of(typing_context: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the bits of a float32 as uint32, of a float64 as uint64."""
    integers = {types.float32: types.uint32, types.float64: types.uint64}

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return integers[x](x), generate


@intrinsic
def float_of(typing_context: Any, bits: Any, like: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the float of the type of `like` whose bits are the low bits of `bits`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.get_value_type(signature.return_type)
        width = ir.IntType(signature.return_type.bitwidth)
        value = arguments[0]
        if value.type.width > width.width:
            value = builder.trunc(value, width)
        elif value.type.width < width.width:
            value = builder.zext(value, width)
        return builder.bitcast(value, target)

    return like(bits, like), generate
