"""The decorator of compiled functions that only compiled functions call.

Contract: `@inner` is `@njit(cache=True, nogil=True)` without the wrappers for Python and C: calling such a function
from Python crashes the process. Why: the wrappers took most of the time to compile a small function that takes a State
(0.4 s instead of 0.06), and there are some hundred. For the same reason a constant among the arguments counts as a
variable of its type: numba would compile the function anew for each constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit, types

if TYPE_CHECKING:
    from collections.abc import Callable

# Without reference counts nothing here may allocate: `raw.scratch` gives room on the stack. Division by zero gives what
# the processor gives: callers look first.
_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
    "error_model": "numpy",
}
_variable: Any = types.unliteral  # untyped


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function for other compiled functions."""
    dispatcher: Any = njit(**_OPTIONS)(function)
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda given, named: template(tuple(_variable(x) for x in given), named)
    return dispatcher
