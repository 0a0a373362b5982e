"""In which order warps run, and when nobody can.

Contract: `work` runs a worker's share of the grid for a slice of rows and says how it ended; `Schedule` is what the
caller may ask for. Bits must not depend on it where a kernel promises so: that is what the orders are for.
A round visits every resident warp. A warp that waits is skipped until `barriers.ready`; late, a visit first lets land
what the warp's mbarrier waits for. When a round moves nothing, the next cluster of the grid is started (a resident CTA
may spin on a later one's result), then every try_wait may end early once, then the worker is idle. Idle workers look
whether others still move; when all are idle for IDLE_ROUNDS, nothing in the grid can change: that is a deadlock.
Known limits: a warp whose lanes wait for one another in a loop stands still, since lanes at lower rows go first.
A spin is one that fits into a turn: with a quantum of a few rows a deadlock in a spin loop ends at the limits instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from fa4verify.ptx.atomics import add64, fence
from fa4verify.ptx.barriers import ready
from fa4verify.ptx.calls import call_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.handle import machine_at, table_of
from fa4verify.ptx.inner import inner
from fa4verify.ptx.knobs import CALL, COMMON, COUNT, KNOB
from fa4verify.ptx.raw import address_of
from fa4verify.ptx.residence import release, start
from fa4verify.ptx.state import Cta, Fault, Waiting, Warp

ORDERS = ("fixed", "reversed", "random")
RUNNING, FINISHED, FAULTY, STOPPED = range(4)
IDLE_ROUNDS = 4000  # a spin on memory is looked at as often before it counts as one that nobody ends
STUCK_ROUNDS = 3  # where nobody spins on memory: nothing can happen between two rounds


@dataclass(frozen=True)
class Schedule:
    """Order of warps and CTAs, and when asynchronous operations have their effect.

    Parameters
    ----------
    order
        "fixed": warps and CTAs by number; "reversed": by number from the last one, also at their start; "random".
    seed
        Of "random".
    quantum
        Rows a warp may run at a time; in "random" the most of them, drawn anew each time.
    late
        Asynchronous operations wait until something waits for them (queue.py).
    resident
        CTAs at a time; None: one cluster, more only when all of them wait; four clusters in "random".
    """

    order: str = "fixed"
    seed: int = 0
    quantum: int = 20_000
    late: bool = False
    resident: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r}: expected one of {', '.join(ORDERS)}")
        if self.quantum < 1 or (self.resident is not None and self.resident < 1):
            raise ValueError("quantum and resident are at least 1")


_LATE, _ORDER, _QUANTUM, _WORKER, _WORKERS = (
    int(KNOB[name]) for name in ("LATE", "ORDER", "QUANTUM", "WORKER", "WORKERS")
)
_CLUSTER_X = int(KNOB.CLUSTER_X)
_KEEP, _STEP_LIMIT, _RANDOM, _IDLE, _SEEN = (
    int(KNOB[name]) for name in ("KEEP", "STEP_LIMIT", "RANDOM", "IDLE", "SEEN")
)
_RUN, _LAND, _FINISH = int(CALL.RUN), int(CALL.LAND), int(CALL.FINISH)
_STEPS, _STOP, _FIRST_WORKER = int(COUNT.STEPS), int(COMMON.STOP), int(COMMON.FIRST_WORKER)
_LIVE, _FIRST, _SIZE, _WARPS = int(Cta.LIVE), int(Cta.FIRST), int(Cta.SIZE), int(Cta.WARPS)
_STATE, _BARRIER, _ROW, _EFFECTS = int(Warp.STATE), int(Warp.BARRIER), int(Warp.ROW), int(Warp.EFFECTS)
_NOTHING, _DONE, _GLOBAL, _MBARRIER = (int(Waiting[name]) for name in ("NOTHING", "DONE", "GLOBAL_MEMORY", "MBARRIER"))
_TWO = np.int64(2)
_DEADLOCK, _TOO_MANY = int(Fault.DEADLOCK), int(Fault.STEP_LIMIT)
_MULTIPLIER, _ADDEND = 6364136223846793005, 1442695040888963407  # of Knuth's MMIX


@inner
def _draw(state, below):  # type: ignore[no-untyped-def]
    """Draw an integer below a bound."""
    state.knobs[_RANDOM] = state.knobs[_RANDOM] * _MULTIPLIER + _ADDEND
    return (state.knobs[_RANDOM] >> 33) % below & 0x7FFFFFFF


@inner
def _turns(state, count):  # type: ignore[no-untyped-def]
    """Return first and step of a walk over `count` that meets each once: first, first + step ... modulo count."""
    if state.knobs[_ORDER] == 0:
        return np.int64(0), np.int64(1)
    if state.knobs[_ORDER] == 1:
        return np.int64(count - 1), np.int64(count - 1)
    step = np.int64(1 + _draw(state, count))
    while True:
        a, b = step, np.int64(count)
        while b != 0:
            a, b = b, a % b
        if a == 1:
            return np.int64(_draw(state, count)), step
        step += 1


@inner
def _visit(state, r, w, forced):  # type: ignore[no-untyped-def]
    """Let one warp run if it can; whether anything has changed. A fault is left in the state."""
    warp, knobs = state.warps[r, w], state.knobs
    waiting, row, effects = warp[_STATE], warp[_ROW], warp[_EFFECTS]
    if waiting == _DONE:
        return False
    spins = waiting == _GLOBAL
    if waiting != _NOTHING and not spins:
        if waiting == _MBARRIER and knobs[_LATE] == 1 and (forced or knobs[_ORDER] != 2 or _draw(state, _TWO) == 0):
            backwards = knobs[_ORDER] == 1 or (knobs[_ORDER] == 2 and _draw(state, _TWO) == 0)
            if call_at(knobs[_LAND], (table_of(state), r, warp[_BARRIER], backwards)) != 0:
                return True
        if not ready(state, r, w):
            if waiting != _MBARRIER or not forced:
                return False
            spins = True
        if state.fault[0] != 0:
            return True
    budget = knobs[_QUANTUM]
    if knobs[_ORDER] == 2:
        budget = 1 + _draw(state, budget)
    call_at(knobs[_RUN], (table_of(state), r, w, budget))
    same = warp[_STATE] == waiting and warp[_ROW] == row and warp[_EFFECTS] == effects
    return not (spins and same)


@inner
def _round(state, forced):  # type: ignore[no-untyped-def]
    """Visit every resident warp; return how many CTAs are there and whether anything has changed."""
    places, warps = state.ctas.shape[0], state.warps.shape[1]
    there, moved = 0, False
    start_cta, step_cta = _turns(state, places)
    for i in range(places):
        r = (start_cta + i * step_cta) % places
        if state.ctas[r, _LIVE] == 0:
            continue
        start_warp, step_warp = _turns(state, warps)
        for j in range(warps):
            moved = _visit(state, r, (start_warp + j * step_warp) % warps, forced) or moved
            if state.fault[0] != 0:
                return there, True
        first = state.ctas[r, _FIRST]
        living = np.int64(0)
        for q in range(first, first + state.ctas[first, _SIZE]):
            living += state.ctas[q, _WARPS]
        if living == 0:
            moved = True
            if call_at(state.knobs[_FINISH], (table_of(state), first)) != 0:
                return there, True
            release(state, first)
    for r in range(places):
        there += state.ctas[r, _LIVE]
    return there, moved


@inner
def _somebody_spins(state):  # type: ignore[no-untyped-def]
    """Whether a resident warp spins on global memory."""
    for r in range(state.ctas.shape[0]):
        if state.ctas[r, _LIVE] != 0:
            for w in range(state.warps.shape[1]):
                if state.warps[r, w, _STATE] == _GLOBAL:
                    return True
    return False


@inner
def _progress(state, common):  # type: ignore[no-untyped-def]
    """Progress of all workers together, and whether every one of them is stuck or done."""
    fence()
    total, stuck = np.int64(0), True
    for worker in range(state.knobs[_WORKERS]):
        total += add64(address_of(common) + 8 * (_FIRST_WORKER + 2 * worker), 0)
        stuck = stuck and common[_FIRST_WORKER + 2 * worker + 1] != 0
    return total, stuck


@inner
def _hopeless(state, common):  # type: ignore[no-untyped-def]
    """Count one idle round more; whether nothing in the grid can change any more."""
    knobs = state.knobs
    mine = _FIRST_WORKER + 2 * knobs[_WORKER] + 1
    total, _ = _progress(state, common)
    if total != knobs[_SEEN]:
        knobs[_SEEN], knobs[_IDLE] = total, 0
        common[mine] = 0
    knobs[_IDLE] += 1
    if knobs[_IDLE] < (IDLE_ROUNDS if _somebody_spins(state) else STUCK_ROUNDS):
        return False
    common[mine] = 1
    again, stuck = _progress(state, common)
    # A worker that waits for memory which only another one can write waits as long as that one moves.
    return stuck and again == total


@njit(cache=True, nogil=True)
def work(address, image, specials, order, common, rows):  # type: ignore[no-untyped-def]
    """Run a worker for about `rows` rows.

    Parameters
    ----------
    address
        Of the table that `handle.pack` made of its State.
    image, specials, order, common
        [slots, 32] registers at the start; [n, 2] slot and `Special`; clusters in the order of their start; the
        workers' common array.

    Returns
    -------
    int
        RUNNING (call again), FINISHED, FAULTY (see `fault`), or STOPPED (another worker is).
    """
    state = machine_at(address)
    knobs, counts = state.knobs, state.counts
    mine = _FIRST_WORKER + 2 * knobs[_WORKER]
    end = counts[_STEPS] + rows
    forced = rows < 0  # not a literal: numba would compile `_round` twice
    idle = 0
    there = np.int64(0)
    for r in range(state.ctas.shape[0]):
        there += state.ctas[r, _LIVE]
    while counts[_STEPS] < end and idle < 100:
        if common[_STOP] != 0:
            return STOPPED
        while there < knobs[_KEEP] and start(state, image, specials, order, common):
            there += knobs[_CLUSTER_X]
        if there == 0:
            add64(address_of(common) + 8 * mine, 1)
            common[mine + 1] = 1
            return FINISHED
        there, moved = _round(state, forced)
        if state.fault[0] != 0:
            return FAULTY
        if counts[_STEPS] > knobs[_STEP_LIMIT]:
            raise_(state, _TOO_MANY, -1, -1, -1, -1, counts[_STEPS], knobs[_STEP_LIMIT], 0, 0)
            return FAULTY
        if not moved and start(state, image, specials, order, common):
            there += knobs[_CLUSTER_X]
            moved = True
        if moved:
            add64(address_of(common) + 8 * mine, 1)
            common[mine + 1] = 0
            knobs[_IDLE] = 0
            forced = rows < 0
        elif not forced:
            forced = rows >= 0
        else:
            idle += 1
            if _hopeless(state, common):
                raise_(state, _DEADLOCK, -1, -1, -1, -1, there, 0, 0, 0)
                return FAULTY
    return RUNNING
