"""Forms of control, of exchange between lanes, of barriers, and of what only orders or hints.

Contract: see `form.py`. PTX ISA 8.8: "Control Flow", "Parallel Synchronization and Communication", "Miscellaneous".
The machine executes in order, so that fences do nothing here; *late* schedules need no more of them, because what is
asynchronous becomes visible when something waits for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fa4verify.ptx.errors import Unsupported
from fa4verify.ptx.form import Form, Reader, all_lanes, counted, exactly, literal
from fa4verify.ptx.operand import Address, Ignored, Pair
from fa4verify.ptx.operations import Atomic, Column, Nop, Op, Shuffle, Vote

if TYPE_CHECKING:
    from fa4verify.ptx.builder import Builder
    from fa4verify.ptx.syntax import Statement

Match = re.Match[str]
D, A, B, C, E, F, G = Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G


def _nothing(kind: Nop, operands: int = 0) -> Reader:
    def read(b: Builder, s: Statement, _: Match) -> None:
        counted(s, 0, operands)
        b.emit(Op.NOP, {F: kind})

    return read


def _plain(op: Op) -> Reader:
    def read(b: Builder, s: Statement, _: Match) -> None:
        exactly(s, 0)
        b.emit(op)

    return read


def _branch(b: Builder, s: Statement, _: Match) -> None:
    exactly(s, 1)
    b.emit(Op.BRANCH, target=s.target)


# Exchange


def _shuffle(b: Builder, s: Statement, m: Match) -> None:
    result, value, lane, clamp, mask = exactly(s, 5)
    named = {A: b.read(value), B: b.read(lane), C: b.read(clamp), G: b.read(mask), F: Shuffle[m["how"].upper()]}
    if isinstance(result, Pair):
        named[E] = b.write_predicate(result.second)
        result = result.first
    named[D] = b.write(result)
    b.emit(Op.SHUFFLE, named)


def _vote(b: Builder, s: Statement, m: Match) -> None:
    result, predicate, mask = exactly(s, 3)
    all_lanes(mask)
    how = Vote[m["how"].upper()]
    voted = b.predicate(predicate)
    written = b.write(result) if how is Vote.BALLOT else b.write_predicate(result)
    b.emit(Op.VOTE, {D: written, A: voted >> 1, B: voted & 1, F: how})


def _elect(b: Builder, s: Statement, _: Match) -> None:
    result, mask = exactly(s, 2)
    all_lanes(mask)
    if not isinstance(result, Pair):
        raise Unsupported("expected a result and a predicate, as %r|%p")
    leader = -1 if isinstance(result.first, Ignored) else b.write(result.first)
    b.emit(Op.ELECT, {D: leader, A: b.write_predicate(result.second)})


def _match(b: Builder, s: Statement, m: Match) -> None:
    result, value, mask = exactly(s, 3)
    all_lanes(mask)
    if isinstance(result, Pair):
        raise Unsupported("match.all with a predicate")
    named = {A: b.read(value, m["type"]), F: int(m["how"] == "all"), G: int(m["type"][1:]) // 8}
    b.emit(Op.MATCH, named | {D: b.write(result)})


def _redux(b: Builder, s: Statement, m: Match) -> None:
    result, value, mask = exactly(s, 3)
    all_lanes(mask)
    b.emit(Op.REDUX, {A: b.read(value), D: b.write(result), F: Atomic[f"{m['how']}_{m['type']}".upper()]})


def _active_mask(b: Builder, s: Statement, _: Match) -> None:
    b.emit(Op.ACTIVEMASK, {D: b.write(exactly(s, 1)[0])})


# Barriers


def _named_barrier(op: Op) -> Reader:
    def read(b: Builder, s: Statement, _: Match) -> None:
        barrier, threads = counted(s, 1 if op is Op.BAR_SYNC else 2, 2)
        assert barrier is not None
        b.emit(op, {A: b.read(barrier), B: -1 if threads is None else b.read(threads)})

    return read


def _warp_barrier(b: Builder, s: Statement, _: Match) -> None:
    b.emit(Op.BAR_WARP, {A: b.read(exactly(s, 1)[0])})


def _init(b: Builder, s: Statement, _: Match) -> None:
    barrier, count = exactly(s, 2)
    slot, offset = b.address(barrier, "shared")
    b.emit(Op.MBARRIER_INIT, {A: slot, B: b.read(count)}, immediate=offset)


def _invalidate(b: Builder, s: Statement, _: Match) -> None:
    slot, offset = b.address(exactly(s, 1)[0], "shared")
    b.emit(Op.MBARRIER_INVAL, {A: slot}, immediate=offset)


def _arrive(b: Builder, s: Statement, m: Match) -> None:
    """Read `[state,] [address] [, count]`; the state is the phase, which this machine's waits take as a parity."""
    operands = list(s.operands)
    if not isinstance(operands[0], Address):
        b.discard(operands.pop(0), "the state that mbarrier.arrive returns")
    if not 1 <= len(operands) <= 2 or (m["tx"] and len(operands) != 2):
        raise Unsupported(f"{s.opcode} with {len(s.operands)} operands")
    slot, offset = b.address(operands[0], "shared")
    count = b.read(operands[1]) if len(operands) == 2 else -1
    if m["tx"]:
        b.emit(Op.MBARRIER_EXPECT_TX, {A: slot, B: count, F: 1}, immediate=offset)
    else:
        b.emit(Op.MBARRIER_ARRIVE, {A: slot, B: count}, immediate=offset)


def _expect(b: Builder, s: Statement, _: Match) -> None:
    barrier, count = exactly(s, 2)
    slot, offset = b.address(barrier, "shared")
    b.emit(Op.MBARRIER_EXPECT_TX, {A: slot, B: b.read(count), F: 0}, immediate=offset)


def _try_wait(b: Builder, s: Statement, _: Match) -> None:
    done, barrier, parity, _hint = counted(s, 3, 4)
    assert done is not None
    assert barrier is not None
    assert parity is not None
    slot, offset = b.address(barrier, "shared")
    b.emit(Op.MBARRIER_TRY_WAIT, {A: slot, B: b.read(parity), D: b.write_predicate(done)}, immediate=offset)


def _arrive_async(b: Builder, s: Statement, m: Match) -> None:
    slot, offset = b.address(exactly(s, 1)[0], "shared")
    b.emit(Op.MBARRIER_ARRIVE_ASYNC, {A: slot, F: int(bool(m["noinc"]))}, immediate=offset)


def _max_registers(b: Builder, s: Statement, _: Match) -> None:
    literal(exactly(s, 1)[0], "a number of registers")
    b.emit(Op.NOP, {F: Nop.SETMAXNREG})


_CTA_SHARED = r"\.shared(?:::cta)?"
_SHARED = r"\.shared(?:::cta|::cluster)?"
_ORDER = r"(?:\.(?:release|acquire|relaxed))?(?:\.(?:cta|cluster))?"
_SCOPE = r"\.(?:cta|cluster|gpu|sys)"

FORMS = (
    Form.of(r"bra(?:\.uni)?", _branch),
    Form.of(r"ret(?:\.uni)?|exit", _plain(Op.EXIT)),
    Form.of(r"trap", _plain(Op.TRAP)),
    Form.of(r"shfl\.sync\.(?P<how>idx|up|down|bfly)\.b32", _shuffle),
    Form.of(r"vote\.sync\.(?P<how>ballot(?=\.b32)|(?:all|any|uni)(?=\.pred))\.(?:b32|pred)", _vote),
    Form.of(r"elect\.sync", _elect),
    Form.of(r"match\.(?P<how>any|all)\.sync\.(?P<type>b32|b64)", _match),
    Form.of(r"redux\.sync\.(?P<how>(?:add|min|max)(?=\.[us])|(?:and|or|xor)(?=\.b))\.(?P<type>[usb]32)", _redux),
    Form.of(r"activemask\.b32", _active_mask),
    Form.of(r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", _named_barrier(Op.BAR_SYNC)),
    Form.of(r"(?:bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?", _named_barrier(Op.BAR_ARRIVE)),
    Form.of(r"bar\.warp\.sync", _warp_barrier),
    Form.of(rf"mbarrier\.init{_CTA_SHARED}\.b64", _init),
    Form.of(rf"mbarrier\.inval{_CTA_SHARED}\.b64", _invalidate),
    Form.of(rf"mbarrier\.arrive(?P<tx>\.expect_tx)?{_ORDER}{_SHARED}\.b64", _arrive),
    Form.of(rf"mbarrier\.expect_tx(?:\.relaxed)?(?:\.(?:cta|cluster))?{_SHARED}\.b64", _expect),
    Form.of(rf"mbarrier\.(?:try|test)_wait\.parity{_ORDER}{_CTA_SHARED}\.b64", _try_wait),
    Form.of(rf"cp\.async\.mbarrier\.arrive(?P<noinc>\.noinc)?{_CTA_SHARED}\.b64", _arrive_async),
    Form.of(r"barrier\.cluster\.arrive(?:\.(?:release|relaxed))?(?:\.aligned)?", _plain(Op.CLUSTER_ARRIVE)),
    Form.of(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?", _plain(Op.CLUSTER_WAIT)),
    # What orders, hints or tunes
    Form.of(rf"fence(?:\.(?:sc|acq_rel|acquire|release))?{_SCOPE}|membar\.(?:cta|gl|sys)", _nothing(Nop.FENCE)),
    Form.of(r"fence\.proxy\.(?:alias|async(?:\.global|\.shared(?:::cta|::cluster)?)?)", _nothing(Nop.FENCE)),
    Form.of(r"fence\.mbarrier_init\.release\.cluster", _nothing(Nop.FENCE)),
    Form.of(r"wgmma\.fence\.sync\.aligned", _nothing(Nop.WGMMA_FENCE)),
    Form.of(r"tcgen05\.fence::(?:before|after)_thread_sync", _nothing(Nop.TC_FENCE)),
    Form.of(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32", _max_registers),
    Form.of(r"prefetch(?:\.global)?\.L[12]|prefetch(?:\.(?:param|const))?\.tensormap", _nothing(Nop.PREFETCH, 1)),
    Form.of(
        r"cp\.async\.bulk\.prefetch\.tensor\.[1-5]d\.L2\.global(?:\.tile)?(?:\.L2::cache_hint)?",
        _nothing(Nop.PREFETCH, 2),
    ),
    Form.of(r"griddepcontrol\.(?:wait|launch_dependents)", _nothing(Nop.GRID_DEPENDENCY)),
    Form.of(r"nanosleep\.u32", _nothing(Nop.NANOSLEEP, 1)),
)
