"""How compiled code reports what a kernel did wrong: a number to return, and the details in `state.fault`.

Contract: the first fault of a run stands; `launch.py` makes an exception of it. `raise_(state, kind, r, w, row, lane,
x0, x1, x2, x3)` records a fault of resident CTA `r`, warp `w`, at a row of code, and returns the kind that stands; lane
-1: the whole warp; x0 ...: what the message needs, by kind: address, size, got, expected. Integers of any width.
An intrinsic: numba would compile a function anew for every combination of integer types that it is called with.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fa4verify.ptx.state import FaultField

_WORD = ir.IntType(64)
_FIELDS = (
    FaultField.KIND, FaultField.ROW, FaultField.CTA, FaultField.WARP, FaultField.LANE, FaultField.X0, FaultField.X1,
    FaultField.X2, FaultField.X3,
)  # fmt: skip


def _raise(
    _typing_context: Any, state: Any, kind: Any, r: Any, w: Any, row: Any, lane: Any, x0: Any, x1: Any, x2: Any, x3: Any
) -> tuple[Any, Any]:
    """Record a fault unless there is one already; return the kind that stands."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        holder = signature.args[0]
        array_type = context.typing_context.resolve_getattr(holder, "fault")
        array = context.get_getattr(holder, "fault")(context, builder, holder, arguments[0], "fault")
        base = context.make_array(array_type)(context, builder, array).data
        values = [
            context.cast(builder, value, given, types.int64)
            for value, given in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        number, place, warp, at, who, *details = values

        def field(name: FaultField) -> Any:
            return builder.gep(base, [_WORD(int(name))])

        first = builder.icmp_signed("==", builder.load(field(FaultField.KIND)), _WORD(0))
        with builder.if_then(first, likely=False):
            for name, value in zip(_FIELDS, (number, at, place, warp, who, *details), strict=True):
                builder.store(value, field(name))
        return builder.load(field(FaultField.KIND))

    return types.int64(state, kind, r, w, row, lane, x0, x1, x2, x3), codegen


# Not as a decorator: numba types an intrinsic as taking the typing context, which its callers do not pass.
raise_: Any = intrinsic(_raise)
