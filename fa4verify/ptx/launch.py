"""Running a grid.

Contract: `launch` runs every CTA of a grid on `workers` threads of the host and returns Statistics, or raises a
MachineFault that names line, CTA, warp and lane. Global memory is the caller's: addresses are those of this process.
Several workers share the grid cluster by cluster; what a kernel leaves to chance between CTAs (the order of atomics) is
then left to the threads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.ptx import explain
from fa4verify.ptx.handle import pack
from fa4verify.ptx.knobs import COMMON, COUNT, KNOB, KNOBS
from fa4verify.ptx.lane_ir import LANES
from fa4verify.ptx.linkage import OPERATIONS, link
from fa4verify.ptx.operations import PENDING, SHARED_BASE, Column, Op
from fa4verify.ptx.residence import SPECIALS
from fa4verify.ptx.schedule import FAULTY, FINISHED, ORDERS, STOPPED, Schedule, work
from fa4verify.ptx.stage import new_stage, tensor_core_steps
from fa4verify.ptx.state import FAULT_FIELDS, Cta, Fault, FaultField, State, Warp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from fa4verify.ptx.kernel import Kernel

__all__ = ["Limits", "Schedule", "Statistics", "launch"]

SLICE = 4_000_000  # rows between two looks at the clock: some 60 ms
MOST_RESIDENT = 256  # CTAs a worker may hold; their memory is untouched until they start
QUEUE = 4096  # asynchronous operations that a CTA may have pending
CLUSTER_MOST = 16
SHARED_MOST = 227 * 1024  # PTX targets of today: dynamic shared memory of a CTA
_CONSTANTS = {"%nsmid": 132}  # where the caller says nothing: an H200


@dataclass(frozen=True)
class Limits:
    """When to stop a launch that does not end.

    Parameters
    ----------
    steps
        Rows that one worker's warps may run together.
    seconds
        Wall-clock time.
    """

    steps: int = 1 << 60
    seconds: float = 3600.0


@dataclass(frozen=True)
class Statistics:
    """What a launch did.

    Parameters
    ----------
    steps, lane_steps
        Rows that warps ran, and lanes that took part in them.
    mma_flops
        2 * M * N * K of the matrix instructions.
    spins
        Waits that had not come true.
    divergent_steps
        Rows that a part of a warp's lanes ran.
    unwaited
        Asynchronous operations (late schedules only) that the kernel ended without waiting for; reductions and stores.
    ctas
        CTAs that ran.
    seconds
        Wall-clock time, compilation included.
    """

    steps: int
    lane_steps: int
    mma_flops: int
    spins: int
    divergent_steps: int
    unwaited: int
    ctas: int
    seconds: float


def launch(
    kernel: Kernel,
    *,
    grid: tuple[int, int, int],
    parameters: bytes,
    memory: Sequence[tuple[int, int]],
    cluster: int | tuple[int, int, int] = 1,
    shared_bytes: int = 0,
    schedule: Schedule | None = None,
    limits: Limits | None = None,
    workers: int = 1,
    constants: Mapping[str, int] | None = None,
) -> Statistics:
    """Run a grid.

    Parameters
    ----------
    kernel
        What to run.
    grid
        CTAs along x, y, z.
    parameters
        The parameter block, at least `kernel.parameter_bytes`.
    memory
        (address, bytes) of what the kernel may touch.
    cluster
        CTAs of a cluster, along x.
    shared_bytes
        Dynamic shared memory of a CTA.
    schedule, limits
        Order of warps and CTAs; when to stop.
    workers
        Threads; more than one only for the fixed order and not late.
    constants
        Special registers that the machine cannot know: `%nsmid`.

    Returns
    -------
    Statistics
        Counted over all workers.

    Raises
    ------
    MachineFault
        One of its subclasses (errors.py); what the kernel had written by then stays written.
    ValueError
        For a launch that makes no sense.
    """
    began = time.monotonic()
    schedule, limits = schedule or Schedule(), limits or Limits()
    size = _cluster_size(cluster)
    _check(kernel, grid, size, parameters, shared_bytes, workers, schedule)
    clusters = grid[0] // size * grid[1] * grid[2]
    workers = min(workers, clusters)
    image, specials = _image(kernel, grid, size, shared_bytes, {**_CONSTANTS, **(constants or {})})
    common = np.zeros(COMMON.FIRST_WORKER + 2 * workers, np.int64)
    states = [
        _state(kernel, grid, size, parameters, memory, shared_bytes, schedule, limits, (i, workers), constants or {})
        for i in range(workers)
    ]
    tables = [pack(state) for state in states]
    order = _order(schedule, clusters)
    endings: list[int] = [STOPPED] * workers
    failures: list[BaseException] = []

    def share(i: int) -> None:
        """Run worker i to its end."""
        try:
            while True:
                endings[i] = work(tables[i].ctypes.data, image, specials, order, common, SLICE)
                if endings[i] in (FINISHED, FAULTY, STOPPED):
                    break
                if time.monotonic() - began > limits.seconds:
                    states[i].fault[FaultField.KIND] = Fault.TIME_LIMIT
                    states[i].fault[FaultField.ROW] = states[i].fault[FaultField.CTA] = -1
                    endings[i] = FAULTY
                    break
                if states[i].knobs[KNOB.IDLE] > 0 and workers > 1:
                    time.sleep(1e-4)  # others move: let them
        except BaseException as failure:
            failures.append(failure)
        if endings[i] != FINISHED:
            common[COMMON.STOP] = 1

    threads = [threading.Thread(target=share, args=(i,), daemon=True) for i in range(1, workers)]
    for thread in threads:
        thread.start()
    share(0)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for state, ending in zip(states, endings, strict=True):
        if ending == FAULTY:
            raise explain.fault(kernel, state, states, limits)
    counts = np.sum([state.counts for state in states], axis=0)
    return Statistics(
        steps=int(counts[COUNT.STEPS]),
        lane_steps=int(counts[COUNT.LANES]),
        mma_flops=int(counts[COUNT.MMA_FLOPS]),
        spins=int(counts[COUNT.SPINS]),
        divergent_steps=int(counts[COUNT.DIVERGENT]),
        unwaited=int(counts[COUNT.LEFT]),
        ctas=int(counts[COUNT.CTAS]),
        seconds=time.monotonic() - began,
    )


def _cluster_size(cluster: int | tuple[int, int, int]) -> int:
    if isinstance(cluster, int):
        return cluster
    x, y, z = cluster
    if (y, z) != (1, 1):
        raise ValueError(f"clusters of {cluster}: only those along x are supported")
    return x


def _check(
    kernel: Kernel,
    grid: tuple[int, int, int],
    size: int,
    parameters: bytes,
    shared_bytes: int,
    workers: int,
    schedule: Schedule,
) -> None:
    """Refuse what no device would start."""
    if len(grid) != 3 or min(grid) < 1:
        raise ValueError(f"grid {grid}: expected three positive numbers of CTAs")
    if not 1 <= size <= CLUSTER_MOST or grid[0] % size:
        raise ValueError(f"clusters of {size} CTAs along a grid of {grid[0]}")
    if len(parameters) < kernel.parameter_bytes:
        raise ValueError(f"{len(parameters)} bytes of parameters, {kernel.name} takes {kernel.parameter_bytes}")
    if not 0 <= shared_bytes <= SHARED_MOST:
        raise ValueError(f"{shared_bytes} bytes of dynamic shared memory; a CTA may have {SHARED_MOST}")
    if kernel.static_shared > SHARED_BASE:
        raise ValueError(f"{kernel.static_shared} bytes of static shared memory; the machine has {SHARED_BASE}")
    if workers < 1:
        raise ValueError(f"{workers} workers")
    if workers > 1 and (schedule.order != "fixed" or schedule.late):
        raise ValueError("several workers only run the fixed order, and not late: threads have an order of their own")
    strange = set(np.unique(kernel.code[:, Column.OP]).tolist()) - OPERATIONS
    if strange:
        raise ValueError(f"operations that the machine does not have: {sorted(strange)}")
    if kernel.code.shape[0] == 0 or kernel.code[-1, Column.OP] not in (Op.EXIT, Op.BRANCH, Op.TRAP):
        raise ValueError("the last row must be an exit, a trap or a branch")


def _image(
    kernel: Kernel, grid: tuple[int, int, int], size: int, shared_bytes: int, constants: Mapping[str, int]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return registers at a warp's start, with the launch's constants, and (slot, Special) of those that differ."""
    image = np.array(kernel.image, np.uint32, order="C")
    x, y, z = grid
    fixed = {
        "%nctaid.x": x, "%nctaid.y": y, "%nctaid.z": z,
        "%nclusterid.x": x // size, "%nclusterid.y": y, "%nclusterid.z": z,
        "%cluster_nctaid.x": size, "%cluster_nctaid.y": 1, "%cluster_nctaid.z": 1,
        "%cluster_ctaid.y": 0, "%cluster_ctaid.z": 0, "%cluster_nctarank": size,
        "%nwarpid": -(-kernel.threads // LANES),
        "%dynamic_smem_size": shared_bytes, "%total_smem_size": SHARED_BASE + shared_bytes,
        **constants,
    }  # fmt: skip
    varying = []
    for name, slot in kernel.specials.items():
        if name in SPECIALS:
            varying.append((slot, int(SPECIALS[name])))
        elif name in fixed:
            image[slot] = fixed[name]
        elif not name.startswith(("%laneid", "%lanemask", "%ntid")):
            raise ValueError(f"the kernel reads {name}; give its value in `constants`")
    return image, np.array(varying, np.int64).reshape(-1, 2)


def _order(schedule: Schedule, clusters: int) -> npt.NDArray[np.int64]:
    """Clusters in the order of their start: random within blocks, since kernels may wait for earlier ones."""
    order = np.arange(clusters, dtype=np.int64)
    if schedule.order == "reversed":
        return order[::-1].copy()
    if schedule.order == "random":
        generator = np.random.default_rng(schedule.seed)
        for first in range(0, clusters, 64):
            generator.shuffle(order[first : first + 64])
    return order


def _aligned(shape: tuple[int, ...], dtype: type[np.generic], alignment: int) -> npt.NDArray[np.generic]:
    """Uninitialised memory that starts at a multiple of `alignment`."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(count + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + count].view(dtype).reshape(shape)


def _state(
    kernel: Kernel,
    grid: tuple[int, int, int],
    size: int,
    parameters: bytes,
    memory: Sequence[tuple[int, int]],
    shared_bytes: int,
    schedule: Schedule,
    limits: Limits,
    worker: tuple[int, int],
    constants: Mapping[str, int],
) -> State:
    """Allocate one worker's machine."""
    clusters = grid[0] // size * grid[1] * grid[2]
    keep = schedule.resident or (4 * size if schedule.order == "random" else size)
    places = min(clusters * size, max(MOST_RESIDENT // size * size, -(-keep // size) * size))
    warps = -(-kernel.threads // LANES)
    shared = -(-(SHARED_BASE + shared_bytes) // 1024) * 1024
    tensor = bool(np.any((kernel.code[:, Column.OP] >= Op.TC_ALLOC) & (kernel.code[:, Column.OP] <= Op.TC_WAIT_ST)))
    block = _aligned((max(len(parameters), 1),), np.uint8, 64)
    block[: len(parameters)] = np.frombuffer(parameters, np.uint8)
    knobs = np.zeros(KNOBS, np.int64)
    knobs[[KNOB.GRID_X, KNOB.GRID_Y, KNOB.GRID_Z]] = grid
    knobs[[KNOB.BLOCK_X, KNOB.BLOCK_Y, KNOB.BLOCK_Z]] = kernel.block
    knobs[KNOB.LATE], knobs[KNOB.ORDER] = int(schedule.late), ORDERS.index(schedule.order)
    knobs[KNOB.QUANTUM], knobs[KNOB.CLUSTER_X], knobs[KNOB.KEEP] = schedule.quantum, size, min(keep, places)
    knobs[KNOB.WORKER], knobs[KNOB.WORKERS] = worker
    knobs[KNOB.STEP_LIMIT], knobs[KNOB.RANDOM] = limits.steps, schedule.seed
    calls, units = link(kernel)
    knobs[list(calls)] = list(calls.values())
    knobs[KNOB.PROCESSORS] = {**_CONSTANTS, **constants}["%nsmid"]
    ranges = np.array([(int(a), int(n)) for a, n in memory], np.int64).reshape(-1, 2)
    return State(
        code=np.array(kernel.code, np.int64, order="C"),
        pool=np.array(kernel.pool, np.int32, order="C"),
        registers=_aligned((places, warps, kernel.image.shape[0], LANES), np.uint32, 64),  # type: ignore[arg-type]
        predicates=np.empty((places, warps, max(kernel.predicates, 1)), np.uint32),
        rows=np.empty((places, warps, LANES), np.int64),
        warps=np.zeros((places, warps, len(Warp)), np.int64),
        ctas=np.zeros((places, len(Cta)), np.int64),
        shared=_aligned((places, shared), np.uint8, 1024),  # type: ignore[arg-type]
        local=np.empty((places, LANES * warps, kernel.local_bytes), np.uint8),
        tensor=np.empty((places, 128, 512) if tensor else (1, 1, 1), np.uint32),
        barriers=np.empty((places, 16, 3), np.int64),
        pending=np.empty((places, QUEUE if schedule.late else 1, PENDING), np.int64),
        parameters=block,  # type: ignore[arg-type]
        memory=ranges,
        fault=np.zeros(FAULT_FIELDS, np.int64),
        counts=np.zeros(len(COUNT), np.int64),
        knobs=knobs,
        steps=tensor_core_steps(getattr(kernel, "target", "sm_90a")),
        stage=new_stage(),
        units=units,
        groups=np.empty((places, warps, 2 * LANES), np.int64),
    )
