"""Values of hand-written PTX: copies, halves, loops, guards, addresses; also where the answer is another."""

import pytest

from fa4verify.kernels.shipped.audit.values import Constant, Graph, Node
from fa4verify.ptx.operand import Address, Register
from fa4verify.ptx.syntax import parse

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
.reqntid 32, 1, 1
{
.reg .pred %p<9>;
.reg .b32 %r<99>;
.reg .b64 %rd<99>;
"""


def graph(body):
    return Graph(parse(f"{HEAD}{body}\nret;\n}}\n").entries[0])


def node(of, text):
    (found,) = [one for one in of.nodes if one.statement.text.startswith(text)]
    return found


def texts(origins):
    return {one.statement.text if isinstance(one, Node) else one.bits for one in origins}


def test_copies_and_pairs_are_looked_through():
    of = graph("""
        ex2.approx.f32 %r1, %r0;
        mov.b32 %r2, %r1;
        mov.b64 %rd1, {%r2, %r9};
        mov.b64 %rd2, %rd1;
        mov.b64 {%r3, %r4}, %rd2;
        add.f32 %r5, %r3, 0f3F800000;
        add.f32 %r6, %r4, 0f3F800000;
    """)
    assert texts(of.operand(node(of, "add.f32 %r5"), 0)) == {"ex2.approx.f32 %r1, %r0"}
    assert of.operand(node(of, "add.f32 %r6"), 0) == ()
    assert of.constant(node(of, "add.f32 %r5"), 1) == Constant(0x3F800000, is_float=True)
    assert [user.opcode for user, _ in of.users(node(of, "ex2"))] == ["add.f32"]


def test_halves_of_packed_arithmetic_are_two_values():
    of = graph("""
        mov.b32 %r1, 0f40000000;
        mov.b32 %r2, 0f40400000;
        mov.b64 %rd1, {%r1, %r2};
        add.rn.f32x2 %rd2, %rd1, %rd9;
        mov.b64 {%r3, %r4}, %rd2;
        sub.f32 %r5, %r3, %r4;
    """)
    low, high = (of.only(node(of, "sub"), side) for side in (0, 1))
    assert (low.lane, high.lane) == (0, 1)
    assert [of.constant(half, 0).bits for half in (low, high)] == [0x40000000, 0x40400000]


def test_a_register_used_twice_is_two_values_and_a_loop_is_both():
    of = graph("""
        mov.b32 %r1, 0f40000000;
        ex2.approx.f32 %r2, %r1;
        ex2.approx.f32 %r1, %r3;
        neg.f32 %r4, %r1;
    L1:
        add.f32 %r4, %r4, %r2;
        @%p1 bra L1;
        rcp.approx.f32 %r5, %r4;
    """)
    assert texts(of.operand(node(of, "ex2.approx.f32 %r2"), 0)) == {0x40000000}
    assert texts(of.operand(node(of, "neg"), 0)) == {"ex2.approx.f32 %r1, %r3"}
    assert texts(of.operand(node(of, "add"), 0)) == {"neg.f32 %r4, %r1", "add.f32 %r4, %r4, %r2"}
    assert texts(of.operand(node(of, "rcp"), 0)) == {"add.f32 %r4, %r4, %r2"}


@pytest.mark.parametrize(("guard", "reaching"), [("", {2}), ("@%p1 ", {1, 2})])
def test_what_is_guarded_may_not_happen(guard, reaching):
    of = graph(f"mov.b32 %r1, 1;\n{guard}mov.b32 %r1, 2;\nadd.s32 %r2, %r1, %r9;")
    assert texts(of.operand(node(of, "add"), 0)) == reaching


@pytest.mark.parametrize(("joined", "split"), [("or.b32 %r3, %r2, 32;", 32), ("or.b32 %r3, %r2, 128;", 0)])
def test_an_address_is_split_only_where_or_adds(joined, split):
    """Bit 7 may be set already: an `or` of 128 is then no addition."""
    of = graph(f"""
        and.b32 %r2, %r1, 128;
        {joined}
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [%r3];
    """)
    load = node(of, "tcgen05.ld")
    (address,) = [one for one in load.statement.operands if isinstance(one, Address)]
    assert isinstance(address.base, Register)
    assert of.address(address.base, load.index)[1] == split


def test_the_walk_back_stops_where_it_is_told():
    of = graph("""
        ld.global.b32 %r1, [%rd1];
        mul.f32 %r2, %r1, %r7;
        max.f32 %r3, %r2, %r8;
        add.f32 %r4, %r3, %r9;
    """)
    behind = of.behind(node(of, "add"), lambda one: one.is_a("add", "max"))
    assert {one.opcode for one in behind} == {"add.f32", "max.f32", "mul.f32"}


def test_a_choice_of_pairs_is_made_half_by_half_and_looked_through():
    of = graph("""
        ex2.approx.f32 %r1, %r0;
        mov.b64 %rd1, {%r1, %r2};
        mov.b64 %rd2, {%r3, %r4};
        selp.b64 %rd3, %rd1, %rd2, %p1;
        selp.b64 %rd4, %rd2, %rd3, %p2;
        mov.b64 {%r5, %r6}, %rd4;
        cvt.rn.bf16x2.f32 %r7, %r9, %r5;
        cvt.rn.bf16x2.f32 %r8, %r9, %r6;
    """)
    assert [user.statement.text for user, _ in of.takers(node(of, "ex2"))] == ["cvt.rn.bf16x2.f32 %r7, %r9, %r5"]
