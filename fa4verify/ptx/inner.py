"""The decorator of compiled functions that only compiled functions call.

Contract: `@inner` is `@njit(cache=True, nogil=True)` without the wrappers for Python and C: calling such a function
from Python crashes the process. Why: the wrappers took most of the time to compile a small function that takes a State
(0.4 s instead of 0.06), and there are some hundred.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner: Any = njit(**_OPTIONS)  # the last two are numba's own and not in its type hints
