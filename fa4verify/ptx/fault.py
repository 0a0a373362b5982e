"""How compiled code reports what a kernel did wrong: a number to return, and the details in `state.fault`.

Contract: the first fault of a run stands; `launch.py` makes an exception of it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fa4verify.ptx.inner import inner
from fa4verify.ptx.state import FaultField

_KIND, _ROW, _CTA, _WARP, _LANE = (
    int(field) for field in (FaultField.KIND, FaultField.ROW, FaultField.CTA, FaultField.WARP, FaultField.LANE)
)
_X0 = int(FaultField.X0)


@inner
def _record(fault, kind, r, w, row, lane, x0, x1, x2, x3):  # type: ignore[no-untyped-def]
    if fault[_KIND] == 0:
        fault[_KIND] = kind
        fault[_ROW], fault[_CTA], fault[_WARP], fault[_LANE] = row, r, w, lane
        fault[_X0], fault[_X0 + 1], fault[_X0 + 2], fault[_X0 + 3] = x0, x1, x2, x3
    return fault[_KIND]


@njit(cache=True, inline="always")
def raise_(state, kind, r, w, row, lane, x0, x1, x2, x3):  # type: ignore[no-untyped-def]
    """Record a fault of resident CTA `r`, warp `w`, at a row of code, and return the kind that stands.

    lane: -1 for the whole warp. x0 ...: what the message needs, by kind: address, size, got, expected.
    """
    return _record(
        state.fault, np.int64(kind), np.int64(r), np.int64(w), np.int64(row), np.int64(lane), np.int64(x0),
        np.int64(x1), np.int64(x2), np.int64(x3),
    )  # fmt: skip
