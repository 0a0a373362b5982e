"""What a schedule tells the compiled machine, and what the machine counts.

Contract: entries of `State.knobs`, `State.counts` and of the workers' common array.
"""

from __future__ import annotations

from enum import IntEnum


class KNOB(IntEnum):
    """Entries of `State.knobs`; from IDLE on they are the scheduler's own memory between two slices of work."""

    LATE = 0
    ORDER = 1  # 0 fixed, 1 reversed, 2 random
    QUANTUM = 2  # rows a warp may run before the next one's turn
    WORKER = 3  # number of this worker
    WORKERS = 4
    CLUSTER_X = 5  # CTAs of a cluster
    GRID_X = 6
    GRID_Y = 7
    GRID_Z = 8
    BLOCK_X = 9  # threads of a CTA
    BLOCK_Y = 10
    BLOCK_Z = 11
    KEEP = 12  # resident CTAs that the schedule asks for
    STEP_LIMIT = 13
    PROCESSORS = 14  # what %smid counts up to
    RANDOM = 15  # state of the worker's generator
    IDLE = 16  # rounds in which nobody could do anything
    SEEN = 17  # all workers' progress when this one became idle


class CALL(IntEnum):
    """Entries of `State.knobs` behind KNOB: addresses of what is compiled apart, 0 where unused (linkage.py)."""

    STRAIGHT = 18
    RUN = 19
    # Families of lane functions, in the order of lane_functions.ENTRIES
    APPROXIMATIONS = 20
    FLOATS = 21
    CODES = 22
    INTEGERS = 23
    MEMORY = 24
    ATOMIC = 25
    EXCHANGE = 26
    COLLECT = 27
    BARRIER = 28
    MMA_SYNC = 29
    MATRIX = 30
    TENSOR_MEMORY = 31
    ISSUE = 32
    LAND = 33
    FINISH = 34
    # Families of asynchronous operations: two for each, in one order
    FILL_COPY = 35
    FILL_BULK = 36
    FILL_TENSOR = 37
    FILL_WGMMA = 38
    FILL_TC = 39
    EFFECT_COPY = 40
    EFFECT_BULK = 41
    EFFECT_TENSOR = 42
    EFFECT_WGMMA = 43
    EFFECT_TC = 44


KNOBS = max(CALL) + 1


class COUNT(IntEnum):
    """Entries of `State.counts`."""

    STEPS = 0  # rows that a warp ran
    LANES = 1  # rows times lanes that took part
    MMA_FLOPS = 2  # 2 * M * N * K of matrix instructions
    SPINS = 3  # waits that had not come true
    DIVERGENT = 4  # rows that ran with a part of the warp's lanes
    LEFT = 5  # asynchronous operations that a kernel ended without waiting for
    CTAS = 6  # that have ended


class COMMON(IntEnum):
    """Entries of the workers' common array; from FIRST_WORKER on two for each: progress, and whether it is stuck."""

    NEXT = 0  # cluster to be started next
    STOP = 1  # not 0: a worker has met a fault, or nobody wants the rest
    FIRST_WORKER = 2
