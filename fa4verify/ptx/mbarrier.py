"""mbarriers: 64 bits of shared memory that count arrivals and bytes, phase by phase.

Contract: a phase completes when no arrival is missing and as many bytes have landed as were expected; then the count
starts again and the parity flips. Every function takes a shared::cluster address and returns 0 or a fault; a wrong
number of arrivals or bytes is a fault, never a wrap.
The word (PTX calls its layout opaque): bits 0-20 bytes still to come plus 2^20, bits 21-40 arrivals still missing,
bits 41-60 arrivals a phase, bit 61 parity, bits 62-63 the mark 01, so that neither zeros nor poison (all ones) pass
for an mbarrier.
Numbers: PTX ISA, "mbarrier": counts from 1 to 2^20 - 1, transaction counts from -(2^20 - 1) to 2^20 - 1.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.bounds import shared_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.raw import load_i64, store_i64
from fa4verify.ptx.state import Cta, Fault

LIMIT = (1 << 20) - 1
_BIAS = 1 << 20
_ZERO = np.int64(0)  # no literal: numba would compile a callee for each
_BYTES = (1 << 21) - 1
_MISSING_SHIFT, _COUNT_SHIFT, _PARITY_SHIFT, _MARK_SHIFT = 21, 41, 61, 62
_PROGRESS = int(Cta.PROGRESS)
_OVERFLOW, _UNINITIALISED = int(Fault.MBARRIER_OVERFLOW), int(Fault.MBARRIER_UNINITIALISED)
_SHARED_BOUNDS, _MISALIGNED = int(Fault.SHARED_BOUNDS), int(Fault.MISALIGNED)


@inner
def _locate(state, r, address):  # type: ignore[no-untyped-def]
    """Return where the word lies, or 0 after a fault."""
    at = shared_at(state, r, address, 8)
    if at == 0:
        raise_(state, _SHARED_BOUNDS, r, -1, -1, -1, address, 8, 0, 0)
    elif address & 7:
        raise_(state, _MISALIGNED, r, -1, -1, -1, address, 8, 0, 0)
        at = 0
    return at


@inner
def init(state, r, address, count):  # type: ignore[no-untyped-def]
    """Start the first phase, of parity 0; `count` arrivals complete each phase."""
    at = _locate(state, r, address)
    if at == 0:
        return state.fault[0]
    if count < 1 or count > LIMIT:
        return raise_(state, _OVERFLOW, r, -1, -1, -1, address, count, 0, LIMIT)
    store_i64(at, (1 << _MARK_SHIFT) | (count << _COUNT_SHIFT) | (count << _MISSING_SHIFT) | _BIAS)
    state.ctas[r, _PROGRESS] += 1
    return 0


@inner
def invalidate(state, r, address):  # type: ignore[no-untyped-def]
    """End the mbarrier's life: its memory is zeros afterwards."""
    at = _locate(state, r, address)
    if at == 0:
        return state.fault[0]
    if (load_i64(at) >> _MARK_SHIFT) != 1:
        return raise_(state, _UNINITIALISED, r, -1, -1, -1, address, load_i64(at), 0, 0)
    store_i64(at, 0)
    return 0


@inner
def change(state, r, address, arrivals, expected, landed):  # type: ignore[no-untyped-def]
    """Expect more bytes, take off bytes that landed and arrivals; complete the phase where nothing is missing.

    Negative `arrivals` add to those that are missing (cp.async.mbarrier.arrive without .noinc).
    """
    at = _locate(state, r, address)
    if at == 0:
        return state.fault[0]
    word = load_i64(at)
    if (word >> _MARK_SHIFT) != 1:
        return raise_(state, _UNINITIALISED, r, -1, -1, -1, address, word, 0, 0)
    missing = (word >> _MISSING_SHIFT) & LIMIT
    count = (word >> _COUNT_SHIFT) & LIMIT
    parity = (word >> _PARITY_SHIFT) & 1
    pending = (word & _BYTES) - _BIAS + expected - landed
    if arrivals > missing or missing - arrivals > LIMIT or pending > LIMIT or pending < -LIMIT:
        return raise_(state, _OVERFLOW, r, -1, -1, -1, address, arrivals, missing, pending)
    missing -= arrivals
    if missing == 0 and pending == 0:
        missing = count
        parity ^= 1
    store_i64(
        at,
        (1 << _MARK_SHIFT) | (parity << _PARITY_SHIFT) | (count << _COUNT_SHIFT) | (missing << _MISSING_SHIFT)
        | (pending + _BIAS),
    )  # fmt: skip
    state.ctas[r, _PROGRESS] += 1
    return 0


@inner
def arrive(state, r, address, count):  # type: ignore[no-untyped-def]
    """Arrive `count` times."""
    return change(state, r, address, count, _ZERO, _ZERO)


@inner
def complete_tx(state, r, address, size):  # type: ignore[no-untyped-def]
    """Report that `size` bytes have landed."""
    return change(state, r, address, _ZERO, _ZERO, size)


@inner
def parity_of(state, r, address):  # type: ignore[no-untyped-def]
    """Return the parity of the phase under way, which ends a wait for the other one, or -1 after a fault."""
    at = _locate(state, r, address)
    if at == 0:
        return -1
    word = load_i64(at)
    if (word >> _MARK_SHIFT) != 1:
        raise_(state, _UNINITIALISED, r, -1, -1, -1, address, word, 0, 0)
        return -1
    return (word >> _PARITY_SHIFT) & 1


@inner
def describe(word):  # type: ignore[no-untyped-def]
    """Return parity, arrivals missing, arrivals a phase and bytes to come of a word; all -1 where it is none."""
    if (word >> _MARK_SHIFT) != 1:
        return -1, -1, -1, -1
    return (
        (word >> _PARITY_SHIFT) & 1,
        (word >> _MISSING_SHIFT) & LIMIT,
        (word >> _COUNT_SHIFT) & LIMIT,
        (word & _BYTES) - _BIAS,
    )
