"""Faults of the machine in words: what happened, where, and, of a deadlock, who waits on what.

Contract: `fault` makes the exception of errors.py that fits; its text is all a reader gets. Rows become lines of the
PTX and their text; addresses are hex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.ptx.errors import FAULTS, MachineFault
from fa4verify.ptx.mbarrier import describe
from fa4verify.ptx.operations import RANK_SHIFT, Column, Op
from fa4verify.ptx.state import Cta, Fault, FaultField, State, Waiting, Warp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fa4verify.ptx.kernel import Kernel
    from fa4verify.ptx.launch import Limits

SHOWN = 24  # lines of a deadlock's report


def fault(kernel: Kernel, state: State, states: Sequence[State], limits: Limits) -> MachineFault:
    """Return the exception for what a worker has met.

    Parameters
    ----------
    kernel
        Whose rows the fault names.
    state
        Of the worker that met it.
    states
        Of all workers, for the report of a deadlock.
    limits
        What the launch was allowed.
    """
    kind = Fault(int(state.fault[FaultField.KIND]))
    row, r, warp, lane = (
        int(state.fault[field]) for field in (FaultField.ROW, FaultField.CTA, FaultField.WARP, FaultField.LANE)
    )
    x = [int(value) for value in state.fault[FaultField.X0 : FaultField.X3 + 1]]
    cta = _cta(state, r) if r >= 0 else None
    return FAULTS.get(kind, MachineFault)(
        _reason(kind, x, limits, states, kernel),
        kernel=kernel.name,
        line=int(kernel.code[row, Column.LINE]) if row >= 0 else 0,
        text=kernel.source_line(row) if row >= 0 else "",
        cta=cta,
        warp=warp if r >= 0 else -1,
        lane=lane if r >= 0 else -1,
    )


def _cta(state: State, r: int) -> tuple[int, int, int]:
    x, y, z = (int(state.ctas[r, axis]) for axis in (Cta.X, Cta.Y, Cta.Z))
    return x, y, z


def _reason(kind: Fault, x: list[int], limits: Limits, states: Sequence[State], kernel: Kernel) -> str:
    address, second, third, fourth = x
    lanes = f"0x{address & 0xFFFFFFFF:08x}"
    spaces = {
        Fault.SHARED_BOUNDS: "shared memory",
        Fault.GLOBAL_BOUNDS: "global memory",
        Fault.PARAMETER_BOUNDS: "the parameters",
        Fault.LOCAL_BOUNDS: "local memory",
        Fault.TMEM_BOUNDS: "tensor memory",
    }
    if kind in spaces:
        return f"{second} bytes at 0x{address & (2**64 - 1):x} lie outside of {spaces[kind]}{_nearest(kind, x, states)}"
    if kind is Fault.DEADLOCK:
        return "\n  ".join(["nobody can go on; who waits on what:", *waits(kernel, states)])
    texts = {
        Fault.MISALIGNED: f"0x{address:x} is not a multiple of {second}",
        Fault.DIVERGENT: f"an instruction of the whole warp met lanes {lanes}, 0x{second & 0xFFFFFFFF:08x} are missing",
        Fault.MBARRIER_OVERFLOW: (
            f"mbarrier at 0x{address:x}: {second} arrivals or counts where {third} are missing, {fourth} bytes to come"
        ),
        Fault.MBARRIER_UNINITIALISED: f"no mbarrier at 0x{address:x}: it holds 0x{second & (2**64 - 1):x}",
        Fault.BARRIER_MISUSE: (
            "barrier.cluster.arrive before the wait for the last one"
            if address < 0
            else f"barrier {address}: {second} threads, others said {third}; {fourth} have arrived"
        ),
        Fault.PENDING_AT_EXIT: f"{_name(address)} was still pending when its warp or cluster ended",
        Fault.STEP_LIMIT: f"{address} rows and no end; the limit is {second}",
        Fault.TIME_LIMIT: f"no end after {limits.seconds:g} s",
        Fault.QUEUE_FULL: f"{address} asynchronous operations of one CTA are pending; that is all the machine holds",
        Fault.TRAP: "trap",
        Fault.UNKNOWN_OPERATION: f"{_name(address)} is not implemented",
    }
    return texts.get(kind) or f"{kind.name.lower().replace('_', ' ')}: " + ", ".join(
        f"0x{v & (2**64 - 1):x}" for v in x
    )


def _name(number: int) -> str:
    try:
        return Op(number).name
    except ValueError:
        return f"operation {number}"


def _nearest(kind: Fault, x: list[int], states: Sequence[State]) -> str:
    """Say how far an address is from the range that ends or begins next to it."""
    if kind is not Fault.GLOBAL_BOUNDS or states[0].memory.shape[0] == 0:
        return ""
    address, size = x[0], x[1]
    candidates = []
    for start, length in states[0].memory.tolist():
        if address >= start:
            candidates.append((max(address + size - start - length, 0), f"ends {start + length:#x}", start, length))
        else:
            candidates.append((start - address, f"starts {start:#x}", start, length))
    distance, what, start, length = min(candidates)
    return f": {distance} bytes off the range of {length} bytes at 0x{start:x}, which {what}"


def waits(kernel: Kernel, states: Sequence[State]) -> list[str]:
    """Who waits on what, one line for warps that wait for the same at the same place."""
    lines: dict[tuple[tuple[int, int, int], str], list[int]] = {}
    for state in states:
        for r in range(state.ctas.shape[0]):
            if not state.ctas[r, Cta.LIVE]:
                continue
            for w in range(state.warps.shape[1]):
                if state.warps[r, w, Warp.STATE] != Waiting.DONE:
                    lines.setdefault((_cta(state, r), _wait(kernel, state, r, w)), []).append(w)
    report = [f"CTA {cta} {_warps(warps)}: {text}" for (cta, text), warps in lines.items()]
    more = len(report) - SHOWN
    return [*report[:SHOWN], f"and {more} more"] if more > 0 else report


def _warps(numbers: list[int]) -> str:
    """Name warps, those that follow each other as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    noun = "warp" if len(numbers) == 1 else "warps"
    return f"{noun} " + ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ranges)


def _wait(kernel: Kernel, state: State, r: int, w: int) -> str:
    warp = state.warps[r, w]
    row, barrier = int(warp[Warp.ROW]), int(warp[Warp.BARRIER])
    waiting = Waiting(int(warp[Warp.STATE]))
    first = int(state.ctas[r, Cta.FIRST])
    if waiting is Waiting.NAMED_BARRIER:
        arrived, _, expected = (int(v) for v in state.barriers[r, barrier])
        what = f"barrier {barrier}, {arrived} of {expected if expected >= 0 else 'all'} threads have arrived"
    elif waiting is Waiting.MBARRIER:
        owner, offset = first + (barrier >> RANK_SHIFT), barrier & ((1 << RANK_SHIFT) - 1)
        word = int(state.shared[owner, offset : offset + 8].view("<i8")[0])
        parity, missing, count, size = describe.py_func(word)
        what = (
            f"mbarrier 0x{barrier:x}, parity {int(warp[Warp.PARITY])} (phase of parity {parity}: "
            f"{missing} of {count} arrivals missing, {size} bytes to come)"
        )
    elif waiting is Waiting.CLUSTER_BARRIER:
        what = f"the cluster's barrier, {int(state.ctas[first, Cta.CLUSTER_ARRIVED])} warps have arrived"
    elif waiting is Waiting.GLOBAL_MEMORY:
        what = f"a change of global memory at 0x{int(warp[Warp.SPIN_ADDRESS]) & (2**64 - 1):x}"
    else:
        what = "nothing"
    return f"{what}; line {int(kernel.code[row, Column.LINE])}: {kernel.source_line(row).strip()[:100]}"
