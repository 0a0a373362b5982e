"""ldmatrix and stmatrix: 8 x 8 matrices of 16 bits between shared memory and the fragments of a warp.

Contract: both act at once and return 0 or a fault. Lane 8 j + i holds the address of row i of matrix j (16 bytes).
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.state import Fault


@njit(cache=True)
def ldmatrix(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Load 1, 2 or 4 matrices; `mask` is the active lanes, which must be all."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, mask, 0, 0, 0)


@njit(cache=True)
def stmatrix(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Store 1, 2 or 4 matrices; `mask` is the active lanes, which must be all."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, mask, 0, 0, 0)
