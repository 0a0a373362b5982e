"""Everything that changes while a grid runs, as arrays that compiled code can take.

Contract: one State a worker thread. R clusters' CTAs are resident: CTA `r` belongs to the cluster whose first CTA is
`ctas[r, CTA_FIRST]`, and has the rank `r - first` in it. Registers and shared memory start as POISON (a NaN in every
format), TMEM as all ones. Compiled functions return 0, or a Fault whose details they have left in `fault`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

POISON_REGISTER = 0x7FC0DEAD
POISON_BYTE = 0xFF  # NaN in fp32, bf16, fp16, e4m3 and e5m2


class Cta(IntEnum):
    """Columns of `ctas`."""

    LIVE = 0
    FIRST = 1  # index of the first resident CTA of its cluster
    SIZE = 2  # CTAs of the cluster
    X = 3
    Y = 4
    Z = 5
    LINEAR = 6
    PROGRESS = 7  # events that may let somebody else go on
    RANDOM = 8  # state of the CTA's generator
    CLUSTER_ARRIVED = 9  # of the first CTA: threads that arrived at the cluster barrier
    CLUSTER_GENERATION = 10
    TMEM_COLUMNS = 11  # allocated
    ISSUED = 12  # asynchronous operations so far
    PENDING = 13  # of them not yet done
    WARPS = 14  # that have not ended


class Warp(IntEnum):
    """Columns of `warps`."""

    STATE = 0  # see Waiting
    LIVE = 1  # lanes that have not exited
    BARRIER = 2  # what it waits for: a named barrier's id, an mbarrier's address ...
    GENERATION = 3
    CLUSTER_GENERATION = 4
    WGMMA_GROUP = 5
    BULK_GROUP = 6
    CP_GROUP = 7
    ROW = 8  # where it stands, for reports
    STEPS = 9
    PARITY = 10
    PARKED = 11  # lanes that wait for the others of their warp
    EFFECTS = 12  # instructions so far that others may notice
    SPIN_ROW = 13  # last load from global memory, and what it saw: a loop that sees nothing new yields
    SPIN_EFFECTS = 14
    SPIN_ADDRESS = 15
    THREADS = 16  # lanes that the block has


class Waiting(IntEnum):
    """Why a warp does not run."""

    NOTHING = 0
    NAMED_BARRIER = 1
    MBARRIER = 2
    CLUSTER_BARRIER = 3
    GLOBAL_MEMORY = 4  # it spins on a value
    DONE = 9


class Fault(IntEnum):
    """What compiled code returns."""

    NONE = 0
    SHARED_BOUNDS = 1
    GLOBAL_BOUNDS = 2
    PARAMETER_BOUNDS = 3
    TMEM_BOUNDS = 4
    DIVERGENT = 5  # an instruction for the whole warp met a part of it
    MBARRIER_OVERFLOW = 6  # more arrivals than the phase expects, or a transaction count out of range
    MBARRIER_UNINITIALISED = 7
    BARRIER_MISUSE = 8
    TENSOR_MAP = 9
    DESCRIPTOR = 10  # of shared memory or of an instruction
    PENDING_AT_EXIT = 11
    DEADLOCK = 12
    STEP_LIMIT = 13
    TIME_LIMIT = 14
    QUEUE_FULL = 15
    MISALIGNED = 16
    TRAP = 17
    TMEM_ALLOCATION = 18
    UNKNOWN_OPERATION = 19
    LOCAL_BOUNDS = 20


class FaultField(IntEnum):
    """Entries of `fault`; X0 ... hold what the message needs (address, size, got, expected)."""

    KIND = 0
    ROW = 1
    CTA = 2
    WARP = 3
    LANE = 4
    X0 = 5
    X1 = 6
    X2 = 7
    X3 = 8


FAULT_FIELDS = 12


class State(NamedTuple):
    """The machine of one worker; shapes in brackets, R resident CTAs, W warps each."""

    code: npt.NDArray[np.int64]  # [rows, COLUMNS]
    pool: npt.NDArray[np.int32]  # [entries]
    registers: npt.NDArray[np.uint32]  # [R, W, slots, 32]; the first element of a slot is aligned to 64 bytes
    predicates: npt.NDArray[np.uint32]  # [R, W, predicates]
    rows: npt.NDArray[np.int64]  # [R, W, 32] next row of each lane
    warps: npt.NDArray[np.int64]  # [R, W, len(Warp)]
    ctas: npt.NDArray[np.int64]  # [R, len(Cta)]
    shared: npt.NDArray[np.uint8]  # [R, shared bytes], each aligned to 1024 bytes
    local: npt.NDArray[np.uint8]  # [R, threads, local bytes]
    tensor: npt.NDArray[np.uint32]  # [R, 128, 512] TMEM, or [1, 1, 1] where no instruction uses it
    barriers: npt.NDArray[np.int64]  # [R, 16, 3] named barriers: threads arrived, generation, threads expected or -1
    pending: npt.NDArray[np.int64]  # [R, capacity, PENDING] asynchronous operations
    parameters: npt.NDArray[np.uint8]  # [bytes] kernel parameters, aligned to 64 bytes
    memory: npt.NDArray[np.int64]  # [ranges, 2] first address and bytes of what the kernel may touch
    fault: npt.NDArray[np.int64]  # [FAULT_FIELDS]
    counts: npt.NDArray[np.int64]  # statistics, see schedule.py
    knobs: npt.NDArray[np.int64]  # what the schedule asks for, see schedule.py
    steps: npt.NDArray[np.int64]  # [len(MmaDtype), 5] stage.tensor_core_steps(target)
    stage: npt.NDArray[np.uint8]  # stage.new_stage()
    units: npt.NDArray[np.int64]  # units.unit_addresses()
    groups: npt.NDArray[np.int64]  # [R, W, 2 * 32] commit groups of each lane so far: cp.async, bulk
