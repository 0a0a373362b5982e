"""How compiled code reports what a kernel did wrong: a number to return, and the details in `state.fault`.

Contract: the first fault of a run stands; `launch.py` makes an exception of it.
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.state import FaultField

_KIND, _ROW, _CTA, _WARP, _LANE = (
    int(field) for field in (FaultField.KIND, FaultField.ROW, FaultField.CTA, FaultField.WARP, FaultField.LANE)
)
_X0 = int(FaultField.X0)


@njit(cache=True)
def raise_(state, kind, r, w, row, lane, x0, x1, x2, x3):  # type: ignore[no-untyped-def]
    """Record a fault of resident CTA `r`, warp `w`, at a row of code, and return the kind that stands.

    lane: -1 for the whole warp. x0 ...: what the message needs, by kind: address, size, got, expected.
    """
    fault = state.fault
    if fault[_KIND] == 0:
        fault[_KIND] = kind
        fault[_ROW], fault[_CTA], fault[_WARP], fault[_LANE] = row, r, w, lane
        fault[_X0], fault[_X0 + 1], fault[_X0 + 2], fault[_X0 + 3] = x0, x1, x2, x3
    return fault[_KIND]
