"""What the lanes of a warp tell each other: shuffles, votes, election, matches and reductions.

Contract: `members` says which lanes a row needs; the caller waits until they are all there. `step` or `collect` then
runs the row for the lanes of a mask. A lane that reads from one that takes no part gets poison, which the program must
not use (PTX: the value is undefined).
Numbers: PTX ISA, "shfl.sync" (its pseudocode), "vote.sync", "elect.sync" (which leader is open there: the lowest lane,
as an H200 does), "match.sync", "redux.sync".
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx import atomics
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.inner import inner
from fa4verify.ptx.lane_ir import LANES, SLOT_BYTES
from fa4verify.ptx.operations import Column, Op, Shuffle, Vote
from fa4verify.ptx.raw import address_of, copy_bytes, load_i64, load_u32, scratch, store_u32
from fa4verify.ptx.state import POISON_REGISTER

_D, _A, _B, _C, _E, _F, _G = (int(x) for x in (Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G))
_SHUFFLE, _VOTE, _ELECT, _MATCH = (int(Op[x]) for x in ("SHUFFLE", "VOTE", "ELECT", "MATCH"))
_IDX, _UP, _DOWN = int(Shuffle.IDX), int(Shuffle.UP), int(Shuffle.DOWN)
_BALLOT, _ALL, _ANY = int(Vote.BALLOT), int(Vote.ALL), int(Vote.ANY)
ALL_LANES = 0xFFFFFFFF


@inner
def lowest(mask):  # type: ignore[no-untyped-def]
    """Lowest lane of a mask; 32 of none."""
    for lane in range(LANES):
        if (mask >> lane) & 1:
            return lane
    return LANES


@inner
def members(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Lanes that a row names: its membermask, as the lowest lane gives it."""
    if state.code[row, 0] == _SHUFFLE:
        return np.int64(state.registers[r, w, state.code[row, _G], lowest(mask)])
    return np.int64(ALL_LANES)


@inner
def _set_predicate(state, r, w, index, word, mask):  # type: ignore[no-untyped-def]
    """Write a predicate in the lanes of a mask."""
    kept = np.int64(state.predicates[r, w, index]) & ~mask
    state.predicates[r, w, index] = (kept | (word & mask)) & ALL_LANES


@inner
def _fill(state, r, w, slot, value, mask):  # type: ignore[no-untyped-def]
    """Write one value to a slot, in the lanes of a mask."""
    for lane in range(LANES):
        if (mask >> lane) & 1:
            state.registers[r, w, slot, lane] = np.uint32(value & ALL_LANES)


@inner
def _shuffle(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    code = state.code[row]
    registers = address_of(state.registers[r, w])
    target, source = registers + SLOT_BYTES * code[_D], registers + SLOT_BYTES * code[_A]
    lanes, clamps = registers + SLOT_BYTES * code[_B], registers + SLOT_BYTES * code[_C]
    values = scratch()  # the result's slot may be the source's
    copy_bytes(values, source, SLOT_BYTES)
    inside = np.int64(0)
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        given, clamp = np.int64(load_u32(lanes + 4 * lane)) & 31, np.int64(load_u32(clamps + 4 * lane))
        segment, bound = (clamp >> 8) & 31, clamp & 31
        last, first = (lane & segment) | (bound & ~segment), lane & segment
        if code[_F] == _UP:
            other = lane - given
            valid = other >= last
        elif code[_F] == _DOWN:
            other = lane + given
            valid = other <= last
        elif code[_F] == _IDX:
            other = first | (given & ~segment)
            valid = other <= last
        else:
            other = lane ^ given
            valid = other <= last
        if not valid:
            other = np.int64(lane)
        else:
            inside |= np.int64(1) << lane
        store_u32(
            target + 4 * lane, load_u32(values + 4 * other) if (mask >> other) & 1 else np.uint32(POISON_REGISTER)
        )
    if code[_E] >= 0:
        _set_predicate(state, r, w, code[_E], inside, mask)


@inner
def _vote(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    code = state.code[row]
    word = np.int64(state.predicates[r, w, code[_A]])
    if code[_B] == 1:
        word = ~word
    word &= mask
    if code[_F] == _BALLOT:
        _fill(state, r, w, code[_D], word, mask)
        return
    if code[_F] == _ALL:
        truth = word == mask
    elif code[_F] == _ANY:
        truth = word != 0
    else:
        truth = word in (0, mask)
    _set_predicate(state, r, w, code[_D], ALL_LANES if truth else 0, mask)


@inner
def _match(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    code = state.code[row]
    base = address_of(state.registers[r, w]) + SLOT_BYTES * code[_A]
    answers = scratch()  # the result's slot may be the operand's
    for lane in range(LANES):
        equal = np.int64(0)
        for other in range(LANES):
            if code[_G] == 8:
                same = load_i64(base + 8 * lane) == load_i64(base + 8 * other)
            else:
                same = load_u32(base + 4 * lane) == load_u32(base + 4 * other)
            if same:
                equal |= mask & (np.int64(1) << other)
        store_u32(answers + 4 * lane, equal if code[_F] == 0 or equal == mask else 0)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            state.registers[r, w, code[_D], lane] = load_u32(answers + 4 * lane)


@inner
def combine(operation, a, b):  # type: ignore[no-untyped-def]
    """Combine two words by an `Atomic` on 32-bit integers; both are bits as int64."""
    if operation in (atomics.ADD_U32, atomics.ADD_S32):
        return (a + b) & ALL_LANES
    if operation == atomics.MIN_U32:
        return min(a, b)
    if operation == atomics.MAX_U32:
        return max(a, b)
    if operation == atomics.AND_B32:
        return a & b
    if operation == atomics.OR_B32:
        return a | b
    if operation == atomics.XOR_B32:
        return a ^ b
    x, y = np.int64(np.int32(a)), np.int64(np.int32(b))
    return (min(x, y) if operation == atomics.MIN_S32 else max(x, y)) & ALL_LANES


@by_address
def step(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run a shuffle, elect or activemask for the lanes of a mask; nothing here can fail."""
    state = machine_at(address)
    code = state.code[row]
    if code[0] == _SHUFFLE:
        _shuffle(state, r, w, row, mask)
    elif code[0] == _ELECT:
        leader = np.int64(lowest(mask))
        if code[_D] >= 0:
            _fill(state, r, w, code[_D], leader, mask)
        _set_predicate(state, r, w, code[_A], np.int64(1) << leader, mask)
    else:
        _fill(state, r, w, code[_D], mask, mask)
    return np.int64(0)


@by_address
def collect(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run a vote, match or redux for the lanes of a mask; nothing here can fail."""
    state = machine_at(address)
    code = state.code[row]
    if code[0] == _VOTE:
        _vote(state, r, w, row, mask)
    elif code[0] == _MATCH:
        _match(state, r, w, row, mask)
    else:
        total = np.int64(state.registers[r, w, code[_A], lowest(mask)])
        for lane in range(lowest(mask) + 1, LANES):
            if (mask >> lane) & 1:
                total = combine(code[_F], total, np.int64(state.registers[r, w, code[_A], lane]))
        _fill(state, r, w, code[_D], total, mask)
    return np.int64(0)
