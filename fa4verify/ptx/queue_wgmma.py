"""wgmma in the queue of asynchronous operations.

Contract: queue.py calls `fill` and `effect` by address, in a kernel that has such an instruction (linkage.py).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.knobs import COUNT
from fa4verify.ptx.operations import Column, MmaDtype, Pending
from fa4verify.ptx.wgmma import issue_wgmma, perform_wgmma

_F, _IMM, _ROW, _FLOPS = int(Column.F), int(Column.IMM), int(Pending.ROW), int(COUNT.MMA_FLOPS)
_K = np.array([{MmaDtype.TF32: 8, MmaDtype.E4M3: 32, MmaDtype.E5M2: 32}.get(kind, 16) for kind in MmaDtype])


@by_address
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    return issue_wgmma(state, r, w, row, lane, state.pending[r, i])


@by_address
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    code = state.code[entry[_ROW]]
    state.counts[_FLOPS] += 2 * 16 * code[_F] * _K[code[_IMM] & 15]
    return perform_wgmma(state, r, entry)
