"""mma.sync.m16n8kK: the matrix multiply of one warp, all operands in registers.

Contract: `mma_sync` acts at once and returns 0 or a fault.
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.state import Fault


@njit(cache=True)
def mma_sync(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """D = A . B + C; `mask` is the active lanes, which must be all."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, mask, 0, 0, 0)
