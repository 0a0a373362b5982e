"""Calls by address, so that one compiled function serves many callers.

Contract: `call_at(address, (x, ...))` calls an `int64(int64, ...)` that `numba.cfunc` made, in the same process.
Why: numba links a copy of everything a function calls into it and optimises it again: `perform_wgmma` alone took 12 s
to compile that way and takes 2.4 s with calls (busy two-core Xeon, November 2026).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _call_at(_typing_context: Any, address: Any, arguments: Any) -> tuple[Any, Any]:
    """Return what the function at `address` returns; arguments: a tuple of integers."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        kinds = signature.args[1].types
        passed = [
            context.cast(builder, builder.extract_value(values[1], i), kind, types.int64)
            for i, kind in enumerate(kinds)
        ]
        function = ir.FunctionType(word, [word] * len(passed)).as_pointer()
        pointer = builder.inttoptr(context.cast(builder, values[0], signature.args[0], types.int64), function)
        return builder.call(pointer, passed)

    return types.int64(address, arguments), codegen


# Not as a decorator: numba types an intrinsic as taking the typing context, which its callers do not pass.
call_at: Any = intrinsic(_call_at)
