"""Which compiled functions a kernel needs: each is compiled, once and for all, when the first kernel that uses it runs.

Contract: `link(kernel)` gives the addresses to be put into `State.knobs` and `State.units`; `OPERATIONS` are the
operations that the machine has. What a Hopper forward uses takes 26 s of processor time to compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa4verify.ptx import (
    barriers,
    exchange,
    lane_functions,
    memory,
    queue,
    queue_bulk,
    queue_copy,
    queue_tcgen05,
    queue_tensor,
    queue_wgmma,
    warp,
)
from fa4verify.ptx.knobs import CALL
from fa4verify.ptx.lanes import FIRST_FUNCTION, LANES
from fa4verify.ptx.operations import Column, Op
from fa4verify.ptx.units import FUNCTIONS, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from fa4verify.ptx.calls import by_address
    from fa4verify.ptx.kernel import Kernel


def _range(first: Op, last: Op) -> frozenset[int]:
    return frozenset(int(op) for op in Op if first <= op <= last)


def _functions(first: int, end: int) -> frozenset[int]:
    return frozenset(range(FIRST_FUNCTION + first, FIRST_FUNCTION + end))


_COPY = frozenset(map(int, (Op.CP_ASYNC, Op.MBARRIER_ARRIVE_ASYNC)))
_BULK = _range(Op.BULK_LOAD, Op.BULK_SHARED)
_TENSOR = _range(Op.TENSOR_LOAD, Op.TENSOR_REDUCE)
_WGMMA = frozenset({int(Op.WGMMA)})
_TC = _range(Op.TC_MMA, Op.TC_COMMIT)
_ALLOCATION = frozenset(map(int, (Op.TC_ALLOC, Op.TC_DEALLOC)))
_MATRIX = frozenset(map(int, (Op.LDMATRIX, Op.STMATRIX)))
_MMA_SYNC = frozenset({int(Op.MMA_SYNC)})
_ATOMIC = _range(Op.ATOMIC_GLOBAL, Op.ATOMIC_SHARED)
_COLLECT = frozenset(map(int, (Op.VOTE, Op.MATCH, Op.REDUX)))
_GROUPS = frozenset(
    map(int, (Op.CP_COMMIT, Op.CP_WAIT, Op.BULK_COMMIT, Op.BULK_WAIT, Op.WGMMA_COMMIT, Op.WGMMA_WAIT, Op.TC_WAIT_LD,
              Op.TC_WAIT_ST))
)  # fmt: skip
_ASYNCHRONOUS = _COPY | _BULK | _TENSOR | _WGMMA | _TC | _GROUPS
_BARRIER = _range(Op.BAR_SYNC, Op.CLUSTER_WAIT) - _COPY
# What the loop over rows does itself.
_IN_LINE = frozenset(map(int, (Op.NOP, Op.BRANCH, Op.EXIT, Op.TRAP, Op.TC_RELINQUISH, Op.CLOCK)))
_VECTOR = frozenset(lane.number for lane in LANES.values() if lane.number < FIRST_FUNCTION)
_SECOND, _THIRD, _LAST = lane_functions.SECOND_FAMILY, lane_functions.THIRD_FAMILY, lane_functions.LAST_FAMILY

_ALWAYS: dict[CALL, by_address] = {CALL.STRAIGHT: warp.straight, CALL.RUN: warp.run, CALL.FINISH: queue.finish}
_CALLS: dict[CALL, tuple[by_address, frozenset[int]]] = {
    CALL.APPROXIMATIONS: (lane_functions.approximations, _functions(0, _SECOND)),
    CALL.FLOATS: (lane_functions.floats, _functions(_SECOND, _THIRD)),
    CALL.CODES: (lane_functions.codes, _functions(_THIRD, _LAST)),
    CALL.INTEGERS: (lane_functions.integers, _functions(_LAST, len(lane_functions.ENTRIES))),
    CALL.MEMORY: (memory.step, _range(Op.LOAD_PARAMETER, Op.STORE_LOCAL)),
    CALL.ATOMIC: (memory.atomic, _ATOMIC),
    CALL.EXCHANGE: (exchange.step, _range(Op.SHUFFLE, Op.ACTIVEMASK) - _COLLECT),
    CALL.COLLECT: (exchange.collect, _COLLECT),
    CALL.BARRIER: (barriers.step, _BARRIER),
    CALL.MMA_SYNC: (warp.multiply, _MMA_SYNC),
    CALL.MATRIX: (warp.matrix, _MATRIX),
    CALL.TENSOR_MEMORY: (warp.tensor_memory, _ALLOCATION),
    CALL.ISSUE: (queue.issue, _ASYNCHRONOUS),
    CALL.LAND: (queue.land, _ASYNCHRONOUS | _BARRIER),
    CALL.FILL_COPY: (queue_copy.fill, _COPY),
    CALL.EFFECT_COPY: (queue_copy.effect, _COPY),
    CALL.FILL_BULK: (queue_bulk.fill, _BULK),
    CALL.EFFECT_BULK: (queue_bulk.effect, _BULK),
    CALL.FILL_TENSOR: (queue_tensor.fill, _TENSOR),
    CALL.EFFECT_TENSOR: (queue_tensor.effect, _TENSOR),
    CALL.FILL_WGMMA: (queue_wgmma.fill, _WGMMA),
    CALL.EFFECT_WGMMA: (queue_wgmma.effect, _WGMMA),
    CALL.FILL_TC: (queue_tcgen05.fill, _TC),
    CALL.EFFECT_TC: (queue_tcgen05.effect, _TC),
}
_PRODUCTS = _WGMMA | _TC | _MMA_SYNC
_UNITS: dict[Unit, frozenset[int]] = {unit: _TENSOR if unit is Unit.COPY_BOX else _PRODUCTS for unit in Unit}
OPERATIONS = _IN_LINE | _VECTOR | frozenset().union(*(needed for _, needed in _CALLS.values()))


def link(kernel: Kernel) -> tuple[dict[CALL, int], npt.NDArray[np.int64]]:
    """Return the addresses for a kernel's `State.knobs` and `State.units`; 0 where it cannot come."""
    used = frozenset(np.unique(kernel.code[:, Column.OP]).tolist())
    calls = {call: function.address for call, function in _ALWAYS.items()}
    calls |= {call: function.address for call, (function, needed) in _CALLS.items() if used & needed}
    return calls, unit_addresses(unit for unit, needed in _UNITS.items() if used & needed)


def unit_addresses(units: Iterable[Unit] = Unit) -> npt.NDArray[np.int64]:
    """Return `State.units` with the addresses of the units named."""
    addresses = np.zeros(len(Unit), np.int64)
    for unit in units:
        addresses[unit] = FUNCTIONS[unit].address
    return addresses
