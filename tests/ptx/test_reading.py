"""Entries to programs: values, widths, variables, and the report of what cannot be run."""

import numpy as np
import pytest

from fa4verify import ptx
from fa4verify.ptx.errors import PtxError
from fa4verify.ptx.lane import FALSE, TRUE
from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operations import FIRST_UNIT, LOCAL_BASE, PARAMETER_BASE, Column, Nop, Op
from fa4verify.ptx.state import POISON_REGISTER
from tests.ptx.texts import HEAD, entry, line_of, text

A, B, C, D, E = Column.A, Column.B, Column.C, Column.D, Column.E


def program(body, **options):
    return ptx.load(text(body, **options), contract=False).program


def names(found, one, *columns):
    return tuple(found.names[one.column(column)] for column in columns)


def problems(body):
    with pytest.raises(PtxError) as caught:
        ptx.load(text(body))
    return caught.value.problems


# Lane operations


def test_a_lane_operation_fills_results_and_operands_in_order():
    found = program("mad.lo.s32 %r1, %r2, 3, %r4;")
    one = found.instructions[0]
    assert one.op == LANES["mad.lo.s32"].number < FIRST_UNIT
    assert names(found, one, D, A, B, C) == ("%r1", "%r2", "0x3", "%r4")


@pytest.mark.parametrize(
    ("statement", "opcode", "written", "read"),
    [
        ("mov.b64 %rd1, {%r1, 0};", "mov.b64.pack2", ("%rd1",), ("%r1", "0x0")),
        ("mov.b64 {_, %r2}, %rd1;", "mov.b64.unpack2", ("<sink1>", "%r2"), ("%rd1",)),
        ("mov.b32 %r1, {%rs1, %rs2};", "mov.b32.pack2", ("%r1",), ("%rs1", "%rs2")),
        ("mov.b32 {%rs1, _}, %r1;", "mov.b32.unpack2", ("%rs1", "<sink1>"), ("%r1",)),
        ("mov.u32 %r1, %tid.x;", "mov.b32", ("%r1",), ("%tid.x",)),
        ("mov.f32 %r1, 0fBF800000;", "mov.b32", ("%r1",), ("0xbf800000",)),
        ("mov.b16 %rs1, -1;", "mov.b16", ("%rs1",), ("0xffff",)),
        ("cvta.to.shared::cluster.u64 %rd1, %rd2;", "mov.b64", ("%rd1",), ("%rd2",)),
    ],
)
def test_moves_are_named_by_what_they_move(statement, opcode, written, read):
    found = program(statement)
    one = found.instructions[0]
    assert one.op == LANES[opcode].number
    assert names(found, one, D, E)[: len(written)] == written if len(written) == 2 else names(found, one, D) == written
    assert names(found, one, A, B)[: len(read)] == read if len(read) == 2 else names(found, one, A) == read


def test_predicates_are_operands_with_a_sign_and_results_without():
    found = program("and.pred %p1, !%p2, %p3; mov.pred %p4, -1; mov.pred %p4, 0; selp.b32 %r1, %r2, %r3, !%p1;")
    both, true, false, select, _ = found.instructions
    index = {name: ~value for value, name in found.names.items() if value < 0}
    assert both.column(D) == index["%p1"]
    assert (both.column(A), both.column(B)) == (2 * index["%p2"] + 1, 2 * index["%p3"])
    assert (true.column(A), false.column(A)) == (TRUE, FALSE)
    assert select.column(C) == 2 * index["%p1"] + 1
    assert min(index[name] for name in ("%p1", "%p2", "%p3", "%p4")) > 0, "predicate 0 is nobody's"


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("cvt.s8.s32 %rs1, %r1;", "(cvt.s16.s8)"),
        ("cvt.s16.s32 %r2, %r1;", "(cvt.s32.s16)"),
        ("cvt.s32.s64 %rd1, %rd2;", "(cvt.s64.s32)"),
        ("cvt.u32.u64 %rd1, %rd2;", "(cvt.u64.u32)"),
        ("cvt.u16.u32 %r2, %r1;", None),
        ("cvt.s32.s8 %r2, %r1;", None),
    ],
)
def test_a_conversion_into_a_wider_register_extends_its_sign(statement, after):
    found = program(statement)
    extra = found.instructions[1:-1]
    assert [one.opcode for one in extra] == ([] if after is None else [after])
    for one in extra:
        assert one.column(D) == one.column(A) == found.instructions[0].column(D)


def test_a_maximum_of_three_is_two_rows():
    found = program("max.f32 %r1, %r2, %r3, %r4;")
    first, second, _ = found.instructions
    assert names(found, first, A, B) == ("%r2", "%r3")
    assert first.column(D) == second.column(A)
    assert names(found, second, D, B) == ("%r1", "%r4")


# Variables, constants, specials


def test_parameters_lie_as_they_are_aligned():
    kernel = ptx.load(
        text("ret;", parameters=".param .b8 a,\n.param .u64 b,\n.param .align 64 .b8 c[5],\n.param .b16 d")
    )
    assert kernel.parameters == (("a", 0, 1), ("b", 8, 8), ("c", 64, 5), ("d", 70, 2))
    assert kernel.parameter_bytes == 72


def test_addresses_of_variables():
    whole = text("mov.b32 %r1, dynamic; mov.b64 %rd1, k_param_1; mov.b64 %rd2, depot; mov.b64 %rd3, fixed;")
    whole = whole.replace(".extern", ".shared .b8 other[3];\n.shared .align 16 .b8 fixed[32];\n.extern")
    whole = whole.replace(".reg .pred", ".local .align 8 .b8 depot[24];\n.reg .pred")
    kernel = ptx.load(whole)
    found = kernel.program
    add, mov, parameter, local, add2, widen, mov2, _ = found.instructions
    assert names(found, add, A, B) == ("%shared_base", "0x400")
    assert mov.column(A) == add.column(D)
    assert found.constants[parameter.column(A)] == (PARAMETER_BASE + 8, 2)
    assert found.constants[local.column(A)] == (LOCAL_BASE, 2)
    assert (found.constants[add2.column(B)], widen.opcode) == ((16, 1), "(cvt.u64.u32)")
    assert mov2.column(A) == widen.column(D)
    assert (kernel.static_shared, kernel.local_bytes) == (48, 24)


def test_the_image_holds_constants_lanes_and_poison():
    body = """mov.b64 %rd1, 0x123456789ABCDEF0; mov.b32 %r1, -2; mov.b16 %rs1, -2; mov.u32 %r2, %laneid;
    mov.u32 %r3, %lanemask_lt; mov.u32 %r3, %lanemask_ge; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ctaid.x;"""
    kernel = ptx.load(text(body))
    found, image = kernel.program, kernel.image
    slots = {name: slot for slot, name in found.names.items()}
    assert (image[slots["0x123456789abcdef0"]].view(np.uint64) == 0x123456789ABCDEF0).all()
    assert (image[slots["0x123456789abcdef0"] + 1].view(np.uint64) == 0x123456789ABCDEF0).all()
    assert (image[slots["0xfffffffe"]] == 0xFFFFFFFE).all()
    assert (image[slots["0xfffe"]] == 0xFFFE).all()
    assert image[kernel.specials["%laneid"]].tolist() == list(range(32))
    assert [bin(int(mask)).count("1") for mask in image[kernel.specials["%lanemask_lt"]]] == list(range(32))
    assert (image[kernel.specials["%lanemask_ge"]] == ~image[kernel.specials["%lanemask_lt"]]).all()
    assert (image[kernel.specials["%ntid.x"]] == 128).all()
    assert (image[kernel.specials["%ctaid.x"]] == POISON_REGISTER).all(), "the launch's to fill"
    assert (image[slots["%rd1"]] == POISON_REGISTER).all()


def test_equal_constants_share_a_slot_and_widths_do_not():
    found = program("mov.b32 %r1, -1; mov.b32 %r2, 0xffffffff; mov.b64 %rd1, -1; mov.b16 %rs1, -1;")
    a, b, wide, narrow, _ = (one.column(A) for one in found.instructions)
    assert a == b
    assert len({a, wide, narrow}) == 3


def test_no_two_registers_share_a_slot():
    found = program("mov.b64 %rd1, {%r1, %r2}; mov.b16 %rs1, %rs2; { .reg .b64 %r1; mov.b64 %r1, %rd1; }")
    wide = {slot for slot, name in found.names.items() if slot >= 0 and name.partition("@")[0] in ("%rd1",)}
    wide |= {slot for slot, name in found.names.items() if name == "%r1@1"}
    taken = [slot for slot in found.names if slot >= 0] + [slot + 1 for slot in wide]
    assert len(taken) == len(set(taken)) == found.slots


# Control


def test_branches_name_rows_and_the_code_ends_with_an_exit():
    kernel = ptx.load(text("bra END; AGAIN: add.s32 %r1, %r1, 1; st.shared.b32 [%rd1], %r1; @!%p1 bra AGAIN; END:"))
    column = kernel.code[:, Column.IMM]
    branches = np.flatnonzero(kernel.code[:, Column.OP] == Op.BRANCH)
    assert column[branches].tolist() == [5, 1], "rows of the text's own, counted with the row that cuts %rd1"
    assert kernel.code[-1, Column.OP] == Op.EXIT
    assert kernel.code.shape[0] == 6
    assert kernel.code[branches[1], Column.GUARD] & 1 == 1


def test_rows_know_their_lines():
    whole = text("\nmov.b32 %r1, 1;\n\n  add.s32 %r1, %r1, 2; // two\n")
    kernel = ptx.load(whole)
    assert kernel.code[0, Column.LINE] == line_of(whole, "mov.b32")
    assert kernel.source_line(1) == "  add.s32 %r1, %r1, 2; // two"


def test_code_cannot_be_written():
    kernel = ptx.load(text("ret;"))
    for array in (kernel.code, kernel.pool, kernel.image):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# A kernel


def test_an_entry_is_named_where_there_are_several():
    whole = HEAD + entry("mov.b32 %r1, 1;", name="a") + entry("ret;", name="b")
    assert ptx.load(whole, entry="b").census() == {"ret": 1, "(exit)": 1}
    with pytest.raises(PtxError, match="2 entries, name one: a, b"):
        ptx.load(whole)
    with pytest.raises(PtxError, match="no entry c"):
        ptx.load(whole, entry="c")


def test_the_architecture_is_the_texts():
    assert ptx.load(text("ret;").replace("sm_90a", "sm_103a")).target == "sm_103a"


def test_without_drops_one_row_and_moves_none():
    kernel = ptx.load(text("@%p1 bra L; st.global.b32 [%rd1], %r1; L: ret;"))
    less = kernel.without(1)
    assert less.code[1, Column.OP] == Op.NOP
    assert less.code[1, Column.F] == Nop.DROPPED
    changed = np.flatnonzero((kernel.code != less.code).any(axis=1))
    assert changed.tolist() == [1]
    assert (kernel.without(0).code[0, Column.OP], kernel.code[0, Column.OP]) == (Op.NOP, Op.BRANCH)


def test_without_a_wait_the_wait_is_over_at_once():
    kernel = ptx.load(text("W: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra W;"))
    row = kernel.without(0).code[0]
    assert row[Column.OP] == LANES["mov.pred"].number
    assert (row[Column.D], row[Column.A]) == (kernel.code[0, Column.D], TRUE)


# What cannot be run


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("frobnicate.b32 %r1, %r2;", "no instruction frobnicate"),
        ("add.f64x2 %r1, %r2, %r3;", "add has no modifier .f64x2"),
        ("setp.eq.strange.s32 %p1, %r1, %r2;", "setp has no modifier .strange"),
        ("ld.global.b128 %rq1, [%rd1];", "ld does not exist with these modifiers"),
        ("ld.b32 %r1, [%rd1];", "ld does not exist with these modifiers"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 %r1;", "wgmma does not exist"),
        ("mov.b128 %rq1, %rq1;", "mov has no modifier .b128"),
        ("add.s32 %r1, %r2;", "takes 1 results and 2 operands, not 1 and 1"),
        ("add.s32 %rd1, %r2, %r3;", "%rd1 is .b64, expected 32 bits"),
        ("add.s32 %r1, %rs2, %r3;", "%rs2 is .b16, expected 32 bits"),
        ("add.s64 %rd1, %rd2, %r3;", "%r3 is .b32, expected 64 bits"),
        ("add.s32 %r1, %p1, 0;", "%p1 is .pred, expected 32 bits"),
        ("and.pred %p1, %p2, %r1;", "expected a predicate, found %r1"),
        ("add.s32 %r1, %r2, 0x100000000;", "does not fit into 32 bits"),
        ("mov.b16 %rs1, 65536;", "does not fit into 16 bits"),
        ("add.f32 %r1, %r2, 1;", "an integer literal where f32"),
        ("mov.b64 %rd1, 0f3F800000;", "a literal of 32 bits where b64"),
        ("add.s32 %r1, %r2, %nosuch;", "%nosuch is no register that is declared here"),
        ("mov.u64 %rd1, %tid.x;", "%tid.x has 32 bits"),
        ("mov.b32 %r1, nowhere;", "no variable or parameter nowhere"),
        ("mov.b32 %r1, k_param_0;", "does not have 32 bits"),
        ("add.s32 7, %r2, %r3;", "a result must be a register"),
        ("add.s32 %r1, {%r2, %r3}, 0;", "found a vector"),
        ("mov.b64 {%r1, %r2, %r3}, %rd1;", "no mov.b64.unpack3"),
        ("ld.param.b64 %rd1, [k_param_1];", "8 bytes at 0 of a parameter of 4"),
        ("ld.param.b32 %r1, [dynamic];", "dynamic lies in .shared, not in .param"),
        ("ld.shared.b32 %r1, [k_param_1];", "k_param_1 lies in .param, not in .shared"),
        ("ld.global.b32 %r1, [%r2];", "%r2 is .b32, expected 64 bits"),
        ("ld.global.v2.b32 %r1, [%rd2];", "1 elements where the opcode says 2"),
        ("ld.global.v2.b32 {%r1, %rd1}, [%rd2];", "registers of 64 bits beside narrower ones"),
        ("ld.global.b32 %rs1, [%rd2];", "%rs1 is .b16, expected 32 bits"),
        ("ld.global.f32 %rd1, [%rd2];", "a register wider than f32"),
        ("st.shared.b32 [%r1], %rs1;", "%rs1 is .b16, expected 32 bits"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "a copy of 8 bytes"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16, %p1;", "ignore its source"),
        ("cp.async.wait_group %r1;", "must be an integer literal"),
        ("shfl.sync.idx.b32 %r1, %r2, 0, 31;", "takes 5 operands, not 4"),
        ("elect.sync %r1|%p1, %r2;", "membermask of all 32 lanes"),
        ("vote.sync.all.pred %p1, %p2, 255;", "membermask of all 32 lanes"),
        ("atom.global.exch.f32 %r1, [%rd1], %r2;", "no atomic exch.f32"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1}], [%r2];", "1 coordinates"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.e4m3.e4m3.f32 %r1, %r2, %r3, %r4;", "K = 8 of e4m3"),
        ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 %r1, %rd1, %rd1, %p1, 1, 1, 0, 0;", "n12k16"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r2];", "expected 2 registers"),
        ("tcgen05.mma.cta_group::2.kind::f16 [%r1], %rd1, %rd2, %r2, {%r3}, 1;", "expected 8 registers"),
        ("tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, 1;", "tcgen05 does not exist"),
        ("call foo;", "no instruction call"),
        ("mbarrier.arrive.shared.b64 %rd1, [%r1]; mov.b64 %rd2, %rd1;", "the state that mbarrier.arrive returns"),
    ],
)
def test_what_the_machine_lacks_is_refused_by_name(statement, reason):
    (found,) = problems(statement)
    assert reason in found.reason
    assert found.line == 16


def test_all_problems_are_reported_at_once_in_order_with_lines_and_texts():
    body = "foo.b32 %r1;\nadd.s32 %r1, %r1, 1;\nbra NOWHERE;\nadd.s32 %r1, %rd1, 1;"
    found = problems(body)
    assert [one.line for one in found] == [16, 18, 19]
    assert [one.text for one in found] == ["foo.b32 %r1", "bra NOWHERE", "add.s32 %r1, %rd1, 1"]
    with pytest.raises(PtxError, match=r"3 statements of k cannot be run:\n  line 16: .*\n    foo.b32 %r1\n  line 18"):
        ptx.load(text(body))


def test_a_long_report_is_cut_and_counted():
    with pytest.raises(PtxError, match="and 88 more") as caught:
        ptx.load(text("foo %r1;\n" * 100))
    assert len(caught.value.problems) == 100


def test_too_much_static_shared_memory_and_an_open_block_are_refused():
    whole = text("ret;").replace(".extern", ".shared .b8 big[1025];\n.extern").replace(".reqntid 128, 1, 1", "")
    with pytest.raises(PtxError) as caught:
        ptx.load(whole)
    assert [one.reason for one in caught.value.problems] == [
        "1025 bytes of static shared memory, at most 1024",
        "without .reqntid the machine does not know the block's size",
    ]
