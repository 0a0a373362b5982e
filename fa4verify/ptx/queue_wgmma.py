"""wgmma in the queue of asynchronous operations; compiled only for kernels that use it (launch.py).

Contract: as `fill` and `effect` of queue.py, which call these by address.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc

from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.knobs import COUNT
from fa4verify.ptx.operations import Column, MmaDtype, Pending
from fa4verify.ptx.wgmma import issue_wgmma, perform_wgmma

_F, _IMM, _ROW, _FLOPS = int(Column.F), int(Column.IMM), int(Pending.ROW), int(COUNT.MMA_FLOPS)
_K = np.array([{MmaDtype.TF32: 8, MmaDtype.E4M3: 32, MmaDtype.E5M2: 32}.get(kind, 16) for kind in MmaDtype])


@cfunc("int64(int64, int64, int64, int64, int64, int64)", cache=True)
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    return issue_wgmma(state, r, w, row, lane, state.pending[r, i])


@cfunc("int64(int64, int64, int64)", cache=True)
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    code = state.code[entry[_ROW]]
    state.counts[_FLOPS] += 2 * 16 * code[_F] * _K[code[_IMM] & 15]
    return perform_wgmma(state, r, entry)
