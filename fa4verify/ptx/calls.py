"""Calls by address, so that one compiled function serves many callers.

Contract: `@by_address` makes of a function on integers an `int64(int64, ...)` that is compiled when its `address` is
first asked for; `call_at(address, (x, ...))` calls it, from compiled code of the same process.
Why: numba links a copy of everything a function calls into it and optimises it again: `perform_wgmma` alone took 12 s
to compile that way and takes 2.4 s with calls (busy two-core Xeon, November 2026).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable


class by_address:  # noqa: N801 -- a decorator
    """A function on integers, compiled at first use: a kernel pays for the units that it has."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @cached_property
    def compiled(self) -> Any:
        """The function as numba compiles or loads it."""
        words = ", ".join(["int64"] * self.function.__code__.co_argcount)
        return cfunc(f"int64({words})", cache=True)(self.function)

    @property
    def address(self) -> int:
        """Where the compiled function lies in this process."""
        return int(self.compiled.address)


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
