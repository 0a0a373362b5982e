"""Every form of unit instruction to its row, column by column, against the columns that `operations` documents.

The expected columns are written with the names of registers, which the program's own table of names translates.
"""

import pytest

from fa4verify import ptx
from fa4verify.ptx.operations import (
    TC_A_IN_TMEM,
    TC_DISABLED_SHIFT,
    WGMMA_A_SHARED,
    WGMMA_NEGATE_A,
    WGMMA_TRANSPOSE_B,
    Atomic,
    Column,
    MmaDtype,
    Nop,
    Op,
    Shuffle,
    TcReduction,
    TcShape,
    Vote,
)
from tests.ptx.texts import text

D, A, B, C, E, F, G, IMM = (Column[name] for name in ("D", "A", "B", "C", "E", "F", "G", "IMM"))
R4 = "{%r4, %r5, %r6, %r7}"
NAMES4 = ("%r4", "%r5", "%r6", "%r7")
R8 = "{%r4, %r5, %r6, %r7, %r8, %r9, %r10, %r11}"
TMA = "cp.async.bulk.tensor.2d"
MULTICAST = ".multicast::cluster.cta_group::2"
DONE = "mbarrier::complete_tx::bytes"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16"
MMA = "tcgen05.mma.cta_group::1.kind::f16"


def rows(body):
    program = ptx.load(text(body), contract=False).program
    return program, program.instructions[:-1]


# statement; operation; columns by the name of what they hold (a value for numbers); the list that column E starts
UNITS = [
    ("bra.uni L; L:", Op.BRANCH, {}, ()),
    ("exit;", Op.EXIT, {}, ()),
    ("trap;", Op.TRAP, {}, ()),
    ("ld.param.b64 %rd1, [k_param_0];", Op.LOAD_PARAMETER, {A: -1, B: 1, F: 8, C: 8}, ("%rd1",)),
    ("ld.param.f32 %r1, [k_param_1];", Op.LOAD_PARAMETER, {A: -1, B: 1, F: 4, C: 4, IMM: 8}, ("%r1",)),
    ("ld.param.b16 %rs1, [k_param_0+2];", Op.LOAD_PARAMETER, {A: -1, B: 1, F: 2, C: 2, IMM: 2}, ("%rs1",)),
    ("ld.param.b32 %r1, [%rd2+4];", Op.LOAD_PARAMETER, {A: "%rd2", B: 1, F: 4, C: 4, IMM: 4}, ("%r1",)),
    (
        "ld.global.v4.b32 {%r1, _, %r2, %r1}, [%rd2+16];",
        Op.LOAD_GLOBAL,
        {A: "%rd2", B: 4, F: 4, C: 4, IMM: 16},
        ("%r1", "<sink1>", "%r2", "%r1"),
    ),
    (
        "ld.global.nc.L1::no_allocate.L2::cache_hint.v2.f32 {%r1, %r2}, [%rd2], %rd3;",
        Op.LOAD_GLOBAL,
        {A: "%rd2", B: 2, F: 4, C: 4},
        ("%r1", "%r2"),
    ),
    ("ld.acquire.gpu.global.s32 %rd1, [%rd2];", Op.LOAD_GLOBAL, {A: "%rd2", B: 1, F: 4, C: 8 + 256}, ("%rd1",)),
    ("ld.global.acquire.gpu.b32 %r1, [%rd2];", Op.LOAD_GLOBAL, {A: "%rd2", B: 1, F: 4, C: 4}, ("%r1",)),
    ("ld.shared.s8 %r1, [%r2];", Op.LOAD_SHARED, {A: "%r2", B: 1, F: 1, C: 4 + 256}, ("%r1",)),
    ("ld.shared.b64 %rd1, [dynamic+8];", Op.LOAD_SHARED, {A: "%shared_base", B: 1, F: 8, C: 8, IMM: 1032}, ("%rd1",)),
    ("ld.local.b32 %r1, [%rd2];", Op.LOAD_LOCAL, {A: "%rd2", B: 1, F: 4, C: 4}, ("%r1",)),
    ("st.global.b32 [%rd1-4], 0f3F800000;", Op.STORE_GLOBAL, {A: "%rd1", B: 1, F: 4, C: 4, IMM: -4}, ("0x3f800000",)),
    ("st.shared.v2.b16 [%r1], {%rs1, 7};", Op.STORE_SHARED, {A: "%r1", B: 2, F: 2, C: 2}, ("%rs1", "0x7")),
    ("st.shared.b8 [%r1], %r2;", Op.STORE_SHARED, {A: "%r1", B: 1, F: 1, C: 4}, ("%r2",)),
    ("st.global.b32 [%rd1], %rd2;", Op.STORE_GLOBAL, {A: "%rd1", B: 1, F: 4, C: 8}, ("%rd2",)),
    ("st.local.b32 [%rd1], %r2;", Op.STORE_LOCAL, {A: "%rd1", B: 1, F: 4, C: 4}, ("%r2",)),
    (
        "red.release.gpu.global.add.s32 [%rd1], %r2;",
        Op.ATOMIC_GLOBAL,
        {A: "%rd1", B: "%r2", F: Atomic.ADD_S32, G: 4},
        (),
    ),
    (
        "atom.shared.cas.b32 %r1, [%r2], %r3, %r4;",
        Op.ATOMIC_SHARED,
        {D: "%r1", A: "%r2", B: "%r3", C: "%r4", F: Atomic.CAS_B32, G: 4},
        (),
    ),
    ("atom.global.add.f32 _, [%rd1], %r3;", Op.ATOMIC_GLOBAL, {A: "%rd1", B: "%r3", F: Atomic.ADD_F32, G: 4}, ()),
    (
        "shfl.sync.bfly.b32 %r1|%p1, %r2, 16, 31, -1;",
        Op.SHUFFLE,
        {D: "%r1", E: "p%p1", A: "%r2", B: "0x10", C: "0x1f", G: "0xffffffff", F: Shuffle.BFLY},
        None,
    ),
    (
        "shfl.sync.idx.b32 %r1, %r2, %r3, 31, %r4;",
        Op.SHUFFLE,
        {D: "%r1", A: "%r2", B: "%r3", C: "0x1f", G: "%r4", F: Shuffle.IDX},
        (),
    ),
    ("vote.sync.ballot.b32 %r1, !%p2, -1;", Op.VOTE, {D: "%r1", A: "p%p2", B: 1, F: Vote.BALLOT}, ()),
    ("vote.sync.any.pred %p1, %p2, 0xffffffff;", Op.VOTE, {D: "p%p1", A: "p%p2", B: 0, F: Vote.ANY}, ()),
    ("elect.sync %r1|%p1, -1;", Op.ELECT, {D: "%r1", A: "p%p1"}, ()),
    ("elect.sync _|%p1, -1;", Op.ELECT, {D: -1, A: "p%p1"}, ()),
    ("match.any.sync.b64 %r1, %rd1, -1;", Op.MATCH, {D: "%r1", A: "%rd1", F: 0, G: 8}, ()),
    ("redux.sync.max.s32 %r1, %r2, -1;", Op.REDUX, {D: "%r1", A: "%r2", F: Atomic.MAX_S32}, ()),
    ("redux.sync.xor.b32 %r1, %r2, -1;", Op.REDUX, {D: "%r1", A: "%r2", F: Atomic.XOR_B32}, ()),
    ("activemask.b32 %r1;", Op.ACTIVEMASK, {D: "%r1"}, ()),
    ("bar.sync 3;", Op.BAR_SYNC, {A: "0x3", B: -1}, ()),
    ("barrier.sync %r1, 64;", Op.BAR_SYNC, {A: "%r1", B: "0x40"}, ()),
    ("bar.arrive 1, %r2;", Op.BAR_ARRIVE, {A: "0x1", B: "%r2"}, ()),
    ("bar.warp.sync -1;", Op.BAR_WARP, {A: "0xffffffff"}, ()),
    ("mbarrier.init.shared.b64 [%r1+8], %r2;", Op.MBARRIER_INIT, {A: "%r1", B: "%r2", IMM: 8}, ()),
    ("mbarrier.inval.shared::cta.b64 [%r1];", Op.MBARRIER_INVAL, {A: "%r1"}, ()),
    ("mbarrier.arrive.shared.b64 %rd1, [%r1], %r2;", Op.MBARRIER_ARRIVE, {A: "%r1", B: "%r2"}, ()),
    ("mbarrier.arrive.shared::cta.b64 _, [%r1];", Op.MBARRIER_ARRIVE, {A: "%r1", B: -1}, ()),
    (
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1+8];",
        Op.MBARRIER_ARRIVE,
        {A: "%r1", B: -1, IMM: 8},
        (),
    ),
    ("mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], %r2;", Op.MBARRIER_EXPECT_TX, {A: "%r1", B: "%r2", F: 1}, ()),
    (
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 128;",
        Op.MBARRIER_EXPECT_TX,
        {A: "%r1", B: "0x80", F: 0},
        (),
    ),
    (
        "mbarrier.try_wait.parity.shared.b64 %p1, [%r1+8], %r2, 10000000;",
        Op.MBARRIER_TRY_WAIT,
        {D: "p%p1", A: "%r1", B: "%r2", IMM: 8},
        (),
    ),
    (
        "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], 1;",
        Op.MBARRIER_TRY_WAIT,
        {D: "p%p1", A: "%r1", B: "0x1"},
        (),
    ),
    ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1+16];", Op.MBARRIER_ARRIVE_ASYNC, {A: "%r1", F: 1, IMM: 16}, ()),
    ("cp.async.mbarrier.arrive.shared.b64 [%r1];", Op.MBARRIER_ARRIVE_ASYNC, {A: "%r1", F: 0}, ()),
    ("barrier.cluster.arrive.relaxed.aligned;", Op.CLUSTER_ARRIVE, {}, ()),
    ("barrier.cluster.wait.acquire;", Op.CLUSTER_WAIT, {}, ()),
    (
        "cp.async.cg.shared.global [%r1+32], [%rd1+64], 16;",
        Op.CP_ASYNC,
        {D: "%r1", A: "%rd1", C: 64, F: 16, B: -1, IMM: 32},
        (),
    ),
    (
        "cp.async.ca.shared::cta.global.L2::128B [%r1], [%rd1], 4, %r2;",
        Op.CP_ASYNC,
        {D: "%r1", A: "%rd1", C: 0, F: 4, B: "%r2"},
        (),
    ),
    (
        "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16, %rd2;",
        Op.CP_ASYNC,
        {D: "%r1", A: "%rd1", C: 0, F: 16, B: -1},
        (),
    ),
    ("cp.async.commit_group;", Op.CP_COMMIT, {}, ()),
    ("cp.async.wait_group 2;", Op.CP_WAIT, {IMM: 2}, ()),
    ("cp.async.wait_all;", Op.CP_WAIT, {IMM: -1}, ()),
    (
        f"cp.async.bulk.shared::cluster.global.{DONE} [%r1+8], [%rd1], %r2, [%r3+16];",
        Op.BULK_LOAD,
        {D: "%r1", IMM: 8, A: "%rd1", B: "%r2", C: "%r3", G: 16},
        (),
    ),
    (
        f"cp.async.bulk.shared::cluster.shared::cta.{DONE} [%r1], [%r4], 64, [%r3];",
        Op.BULK_SHARED,
        {D: "%r1", A: "%r4", B: "0x40", C: "%r3", G: 0},
        (),
    ),
    (
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1+32], [%r1], 64;",
        Op.BULK_STORE,
        {D: "%rd1", IMM: 32, A: "%r1", B: "0x40"},
        (),
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], %r2;",
        Op.BULK_REDUCE,
        {D: "%rd1", A: "%r1", B: "%r2", F: Atomic.ADD_F32, G: 4},
        (),
    ),
    (
        f"{TMA}.shared::cta.global.tile.{DONE}.L2::cache_hint [%r1+8], [%rd1, {{%r2, 0}}], [%r3+16], %rd2;",
        Op.TENSOR_LOAD,
        {D: "%r1", IMM: 8, A: "%rd1", C: "%r3", G: 16, F: 2, B: -1},
        ("%r2", "0x0"),
    ),
    (
        f"{TMA}.shared::cluster.global.tile.{DONE}{MULTICAST} [%r1], [%rd1, {{%r2, %r3}}], [%r3], %rs1;",
        Op.TENSOR_LOAD,
        {D: "%r1", A: "%rd1", C: "%r3", G: 0, F: 2, B: "%rs1"},
        ("%r2", "%r3"),
    ),
    (
        f"{TMA}.global.shared::cta.tile.bulk_group [%rd1, {{%r2, %r3}}], [%r1+4];",
        Op.TENSOR_STORE,
        {D: "%r1", IMM: 4, A: "%rd1", F: 2},
        ("%r2", "%r3"),
    ),
    (
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd1, {%r2}], [%r1];",
        Op.TENSOR_REDUCE,
        {D: "%r1", A: "%rd1", F: 1, G: Atomic.ADD_F32},
        ("%r2",),
    ),
    ("cp.async.bulk.commit_group;", Op.BULK_COMMIT, {}, ()),
    ("cp.async.bulk.wait_group.read 1;", Op.BULK_WAIT, {IMM: 1, F: 1}, ()),
    ("cp.async.bulk.wait_group 0;", Op.BULK_WAIT, {IMM: 0, F: 0}, ()),
    (
        f"{WGMMA}.f32.bf16.bf16 {R4}, %rd1, %rd2, %p1, 1, 1, 0, 1;",
        Op.WGMMA,
        {A: "%rd1", B: "%rd2", C: "p%p1", F: 8, IMM: MmaDtype.BF16 | WGMMA_A_SHARED | WGMMA_TRANSPOSE_B},
        NAMES4,
    ),
    (
        f"{WGMMA}.f32.f16.f16 {R4}, {{%r1, %r2, %r3, %r8}}, %rd2, %p1, -1, 1, 1;",
        Op.WGMMA,
        {A: -1, B: "%rd2", C: "p%p1", F: 8, IMM: 0x11 | WGMMA_NEGATE_A | WGMMA_TRANSPOSE_B},
        (*NAMES4, "%r1", "%r2", "%r3", "%r8"),
    ),
    (
        f"wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {R4}, %rd1, %rd2, %p1, 1, 1;",
        Op.WGMMA,
        {A: "%rd1", B: "%rd2", C: "p%p1", F: 8, IMM: 0x32 | WGMMA_A_SHARED},
        NAMES4,
    ),
    ("wgmma.commit_group.sync.aligned;", Op.WGMMA_COMMIT, {}, ()),
    ("wgmma.wait_group.sync.aligned 1;", Op.WGMMA_WAIT, {IMM: 1}, ()),
    (
        f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {R4}, {{%r12, %r13, %r14, %r15}}, {{%r1, %r2}}, {R4};",
        Op.MMA_SYNC,
        {F: 16, IMM: MmaDtype.BF16},
        (*NAMES4, "%r12", "%r13", "%r14", "%r15", "%r1", "%r2", *NAMES4),
    ),
    (
        f"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {R4}, [%r1+64];",
        Op.LDMATRIX,
        {A: "%r1", IMM: 64, F: 4, B: 1},
        NAMES4,
    ),
    (
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2, %r3};",
        Op.STMATRIX,
        {A: "%r1", F: 2, B: 0},
        ("%r2", "%r3"),
    ),
    (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+4], %r2;",
        Op.TC_ALLOC,
        {A: "%r1", IMM: 4, B: "%r2", F: 1},
        (),
    ),
    ("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, 512;", Op.TC_DEALLOC, {A: "%r1", B: "0x200", F: 2}, ()),
    ("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;", Op.TC_RELINQUISH, {F: 2}, ()),
    (
        f"{MMA} [%r1], %rd1, %rd2, %r2, %p1;",
        Op.TC_MMA,
        {D: "%r1", A: "%rd1", B: "%rd2", C: "%r2", E: "p%p1", F: 1, IMM: 0},
        None,
    ),
    (
        f"{MMA}.collector::a::discard [%r1], [%r3+64], %rd2, %r2, {R4}, 1;",
        Op.TC_MMA,
        {D: "%r1", A: "%r3", G: 64, B: "%rd2", C: "%r2", E: -2, F: 1, IMM: TC_A_IN_TMEM | 1 << TC_DISABLED_SHIFT},
        None,
    ),
    (
        f"tcgen05.mma.cta_group::2.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, {R8}, 0;",
        Op.TC_MMA,
        {D: "%r1", A: "%rd1", B: "%rd2", C: "%r2", E: -1, F: 2, IMM: 2 << 4 | 1 << TC_DISABLED_SHIFT},
        None,
    ),
    (
        f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {R4}, [%r1+16];",
        Op.TC_LD,
        {A: "%r1", IMM: 16, F: 4, G: TcShape.S32X32B, D: -1, B: -1},
        NAMES4,
    ),
    (f"tcgen05.ld.sync.aligned.16x256b.x1.b32 {R4}, [%r1];", Op.TC_LD, {A: "%r1", F: 4, G: TcShape.S16X256B}, NAMES4),
    (
        f"tcgen05.ld.red.sync.aligned.32x32b.x4.max.f32 {R4}, %r8, [%r1];",
        Op.TC_LD,
        {A: "%r1", F: 4, G: TcShape.S32X32B, D: "%r8", B: TcReduction.MAX_F32},
        NAMES4,
    ),
    (
        f"tcgen05.ld.red.sync.aligned.32x32b.x4.min.abs.NaN.f32 {R4}, %r8, [%r1];",
        Op.TC_LD,
        {A: "%r1", F: 4, G: 0, D: "%r8", B: TcReduction.MIN_F32 + 6},
        NAMES4,
    ),
    (
        "tcgen05.st.sync.aligned.16x128b.x1.b32 [%r1], {%r2, %r3};",
        Op.TC_ST,
        {A: "%r1", F: 2, G: TcShape.S16X128B},
        ("%r2", "%r3"),
    ),
    ("tcgen05.cp.cta_group::1.128x256b [%r1], %rd1;", Op.TC_CP, {A: "%r1", B: "%rd1", F: 1, G: TcShape.S128X256B}, ()),
    (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];",
        Op.TC_COMMIT,
        {A: "%r1", IMM: 8, B: -1, F: 1},
        (),
    ),
    (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %rs1;",
        Op.TC_COMMIT,
        {A: "%r1", B: "%rs1", F: 2},
        (),
    ),
    ("tcgen05.wait::ld.sync.aligned;", Op.TC_WAIT_LD, {}, ()),
    ("tcgen05.wait::st.sync.aligned;", Op.TC_WAIT_ST, {}, ()),
    ("mov.u64 %rd1, %clock64;", Op.CLOCK, {D: "%rd1", F: 8}, ()),
    ("mov.u32 %r1, %clock;", Op.CLOCK, {D: "%r1", F: 4}, ()),
    *(
        (statement, Op.NOP, {F: kind}, ())
        for statement, kind in (
            ("fence.proxy.async.shared::cta;", Nop.FENCE),
            ("fence.mbarrier_init.release.cluster;", Nop.FENCE),
            ("fence.acq_rel.gpu;", Nop.FENCE),
            ("membar.gl;", Nop.FENCE),
            ("wgmma.fence.sync.aligned;", Nop.WGMMA_FENCE),
            ("tcgen05.fence::after_thread_sync;", Nop.TC_FENCE),
            ("setmaxnreg.dec.sync.aligned.u32 24;", Nop.SETMAXNREG),
            ("prefetch.tensormap [%rd1];", Nop.PREFETCH),
            ("griddepcontrol.wait;", Nop.GRID_DEPENDENCY),
            ("nanosleep.u32 20;", Nop.NANOSLEEP),
        )
    ),
]


@pytest.mark.parametrize(("statement", "op", "expected", "listed"), UNITS, ids=[unit[0][:60] for unit in UNITS])
def test_a_unit_instruction_fills_its_columns(statement, op, expected, listed):
    program, (one, *more) = rows(statement)
    assert more == []
    assert Op(one.op) is op
    names = {slot: name for slot, name in program.names.items() if slot >= 0}
    predicates = {~value: f"p{name}" for value, name in program.names.items() if value < 0}
    held = {column: one.column(column) for column in (D, A, B, C, E, F, G)} | {IMM: one.immediate}
    for column, want in expected.items():
        if not isinstance(want, str):
            assert held.pop(column) == want, column.name
        else:
            table = predicates if want[0] == "p" else names
            assert table[held.pop(column)] == want, column.name
    if listed:
        first = held.pop(E)
        assert tuple(names[slot] for slot in program.pool[first : first + len(listed)]) == listed
    assert held.pop(IMM, 0) == 0
    assert set(held.values()) <= {-1}, "a column that nobody asked for"


def test_reads_and_writes_are_what_the_statement_names():
    program, (one,) = rows(
        f"@!%p2 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {R4}, %rd1, %rd2, %p1, 1, 1, 0, 0;"
    )
    assert {program.names[value] for value in one.reads} == {*NAMES4, "%rd1", "%rd2", "%p1", "%p2"}
    assert [program.names[value] for value in one.writes] == list(NAMES4)
    assert program.names[~(one.guard >> 1)] == "%p2"
    assert one.guard & 1 == 1
    program, (one,) = rows("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r4, %r5}, %r8, [%r1];")
    assert [program.names[value] for value in one.writes] == ["%r4", "%r5", "%r8"]


def test_a_vector_atomic_is_a_row_an_element():
    program, found = rows("red.global.add.v2.f32 [%rd1+8], {%r1, %r2};")
    assert [(one.op, one.immediate, program.names[one.column(B)]) for one in found] == [
        (Op.ATOMIC_GLOBAL, 8, "%r1"),
        (Op.ATOMIC_GLOBAL, 12, "%r2"),
    ]


def test_an_offset_without_a_column_is_added_by_a_row_of_its_own():
    program, (add, copy) = rows("@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1+64], 128;")
    assert add.opcode == "(add.s32)"
    assert add.guard == copy.guard
    assert program.constants[add.column(B)] == (64, 1)
    assert copy.column(A) == add.column(D)
    assert program.names[add.column(A)] == "%r1"


def test_a_shared_address_of_64_bits_is_cut_by_a_row_of_its_own():
    program, (cut, store) = rows("st.shared.b32 [%rd1+4], %r1;")
    assert cut.opcode == "(cvt.u32.u64)"
    assert program.names[cut.column(A)] == "%rd1"
    assert (store.column(A), store.immediate) == (cut.column(D), 4)
