"""Text to statements: scopes, labels, operands, lines, and what a text that is wrong is told."""

import pytest

from fa4verify.ptx.errors import PtxError
from fa4verify.ptx.operand import (
    Address,
    Ignored,
    Immediate,
    Negated,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from fa4verify.ptx.syntax import Variable, parse
from tests.ptx.texts import HEAD, entry, line_of, text


def statements(body):
    found = parse(text(body)).entries[0]
    assert found.problems == ()
    return found.statements


def r(number, scope=0):
    return Register(f"%r{number}", "b32", scope)


@pytest.mark.parametrize(
    ("written", "operand"),
    [
        ("%r1", r(1)),
        ("!%p3", Negated(Register("%p3", "pred", 0))),
        ("_", Ignored()),
        ("%tid.x", Special("%tid.x")),
        ("-7", Immediate(-7)),
        ("0x10U", Immediate(16)),
        ("0b101", Immediate(5)),
        ("017", Immediate(15)),
        ("0f3F800000", Immediate(0x3F800000, 32)),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, 64)),
        ("{%r1, _, 0}", Vector((r(1), Ignored(), Immediate(0)))),
        ("%r1|%p2", Pair(r(1), Register("%p2", "pred", 0))),
        ("[%r1]", Address(r(1))),
        ("[%r1+16]", Address(r(1), 16)),
        ("[%r1+-16]", Address(r(1), -16)),
        ("[%r1-16]", Address(r(1), -16)),
        ("[dynamic+8]", Address(Symbol("dynamic"), 8)),
        ("[%rd1, {%r1, 0}]", Address(Register("%rd1", "b64", 0), 0, Vector((r(1), Immediate(0))))),
        ("dynamic", Symbol("dynamic")),
    ],
)
def test_operands(written, operand):
    (statement,) = statements(f"op.x {written};")
    assert statement.operands == (operand,)


def test_a_modifier_with_colons_is_part_of_the_opcode_and_a_label_is_not():
    first, second = statements("L: cp.async.bulk.tensor.4d.shared::cta.global.tile 1, 2; bra L;")
    assert first.opcode == "cp.async.bulk.tensor.4d.shared::cta.global.tile"
    assert second.target == 0


def test_comments_do_not_move_lines_or_enter_texts():
    body = "op.a 1; // one; two\n/* a\n b ; */ op.b\n 2,\n /* c */ 3;"
    whole = text(body)
    first, second = parse(whole).entries[0].statements
    assert (first.line, first.text) == (line_of(whole, "op.a"), "op.a 1")
    assert (second.line, second.text) == (line_of(whole, "op.b"), "op.b 2, 3")


def test_blocks_have_registers_and_labels_of_their_own():
    body = """
    { .reg .pred p; W: op.a p; @p bra D; bra W; D: }
    { .reg .b32 p; W: op.b p; bra W; D: op.c %r1; }
    D: op.d;"""
    a, leave, again, b, again2, c, _ = statements(body)
    assert a.operands[0].kind == "pred"
    assert b.operands[0].kind == "b32"
    assert a.operands != b.operands
    assert (leave.target, again.target, again2.target) == (3, 0, 3)
    assert leave.guard == a.operands[0]
    assert c.operands == (r(1),)


def test_a_branch_sees_labels_of_the_scopes_around_it_and_of_no_other():
    (inner, _) = statements("{ bra OUT; } OUT: op.a;")
    assert inner.target == 1
    found = parse(text("{ IN: op.a; } bra IN;")).entries[0]
    assert [problem.reason for problem in found.problems] == ["no label 'IN' here"]


def test_an_inner_register_hides_the_outer_one_until_its_block_ends():
    inner, outer = statements("{ .reg .b64 %r1; op.a %r1; } op.a %r1;")
    assert (inner.operands[0].kind, outer.operands[0].kind) == ("b64", "b32")


def test_parameters_variables_and_directives():
    whole = (
        HEAD
        + ".shared .align 16 .b8 fixed[40];\n.extern .shared .align 8 .b8 open[];\n"
        + entry(
            '.local .align 8 .b8 depot[24];\n.pragma "nounroll";\n.loc 1 2 3\nret;',
            ".param .align 64 .b8 map[128],\n.param .f32 x",
        )
    )
    module = parse(whole)
    assert module.target == "sm_90a"
    assert module.variables == (Variable("fixed", "shared", 16, 40), Variable("open", "shared", 8, 0))
    (found,) = module.entries
    assert found.parameters == (Variable("map", "param", 64, 128), Variable("x", "param", 4, 4))
    assert found.variables == (Variable("depot", "local", 8, 24),)
    assert found.block == (128, 1, 1)
    assert [one.opcode for one in found.statements] == ["ret"]


def test_several_entries_are_kept_apart():
    module = parse(HEAD + entry("L: bra L;", name="a") + entry("ret; L: bra L;", name="b"))
    assert [one.name for one in module.entries] == ["a", "b"]
    assert [one.statements[-1].target for one in module.entries] == [0, 1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (".reg .b32 %r1;", "%r1 is declared twice"),
        (".reg .b31 x;", "no register type .b31"),
        ("op.a 1.5;", "expected an integer"),
        ("op.a 1 2;", "expected ';'"),
        ("op.a [%r1+%r2];", "expected an integer"),
        ("op.a [1.5];", "expected an integer"),
        ("op.a !7;", "expected a name"),
        ("op.a !_;", "only a predicate"),
        ("@7 op.a;", "a guard is a predicate"),
        ("op.a {%r1;", "expected '}'"),
        ("L: op.a; L: op.b;", "the label exists already"),
    ],
)
def test_a_statement_that_cannot_be_read_is_a_problem_and_the_next_is_read(body, reason):
    whole = text(f"{body}\nlast;")
    found = parse(whole).entries[0]
    (problem,) = found.problems
    assert reason in problem.reason
    assert problem.line == line_of(whole, body)
    assert found.statements[-1].opcode == "last"


@pytest.mark.parametrize(
    ("whole", "line", "reason"),
    [
        (text("op.a `;"), 16, "is not PTX"),
        (text("ret;").rstrip()[:-1], None, "an entry without its end"),
        (HEAD + ".func f() { ret; }", 4, ".func outside of an entry"),
        (HEAD + ".visible .entry k() .strange { ret; }", 4, "directive .strange"),
        (HEAD + ".visible .entry k(.b32 x) { ret; }", 4, "expected '.param'"),
    ],
)
def test_a_text_without_structure_is_an_error_at_once(whole, line, reason):
    with pytest.raises(PtxError, match=reason) as caught:
        parse(whole)
    if line is not None:
        assert caught.value.problems[0].line == line
