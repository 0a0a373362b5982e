"""Edits that leave constants and opcodes as they were and put them together wrongly: none may pass.

The first twenty are what the audit passed before it had `program` and `float_flow`. Of each is asserted that `program`
differs, and whether `float_flow` does; in the fast suite of the digests, whole verdicts are exhaustive. Then edits that
no result depends on: they change neither.
"""

import functools
import re

import pytest

from fa4verify.kernels.shipped.audit.contract import contract_of, judge
from fa4verify.kernels.shipped.audit.float_flow import float_flow_fact
from fa4verify.kernels.shipped.audit.program import program_fact
from fa4verify.kernels.shipped.audit.values import Graph
from fa4verify.ptx.syntax import parse
from tests.kernels.shipped.audit.texts import BLACKWELL, GRADIENT, clean, needs_fa4, result, texts

pytestmark = needs_fa4
HOPPER = "fwd-sm_90a-d128-causal-bf16-mha"
GEFORCE = "fwd-sm_120a-d128-causal-bf16-mha"
DATACENTER = "bwd-sm_100a-d64-full-bf16-mha"


@functools.cache
def digests(ptx):
    """Return both digests of a text's entries."""
    entries = parse(ptx).entries
    return tuple((program_fact(one).value, float_flow_fact(Graph(one)).value) for one in entries)


def first(pattern, replacement):
    """Return an edit of the first match; a text without one (another launch of the configuration) stays."""
    return lambda ptx: re.sub(pattern, replacement, ptx, count=1, flags=re.DOTALL)


def of_the_factor(put):
    """Return an edit of the row sum's product with the factor of the rescale."""

    def edit(ptx):
        factor = re.search(r"selp\.f32 \t(%r\d+), 0f3F800000, %r\d+, %p\d+;", ptx)[1]
        return re.sub(rf"mul\.f32 \t(%r\d+), (%r\d+), {factor};", put, ptx, count=1)

    return edit


# What is edited, how, and whether the flow of floats shows it.
HOSTILE = {
    "row sum not rescaled": (BLACKWELL, of_the_factor(r"mov.b32 \t\1, \2;"), True),
    "row sum rescaled by another factor": (BLACKWELL, of_the_factor(r"mul.f32 \t\1, \2, 0f3F000000;"), True),
    "O never rescaled": (BLACKWELL, first(r"(setp\.lt\.f32 \t%p\d+, %r\d+), 0f3F800000;", r"\1, 0f00000000;"), True),
    "no guard of a maximum of -inf": (
        BLACKWELL,
        first(r"selp\.f32 \t(%r\d+), (%r\d+), 0f00000000, %p\d+;", r"mov.b32 \t\1, \2;"),
        True,
    ),
    "no guard of a row sum of 0": (
        BLACKWELL,
        first(r"selp\.f32 \t(%r\d+), (%r\d+), 0f3F800000, %p\d+;", r"mov.b32 \t\1, \2;"),
        True,
    ),
    "LSE of an empty row": (
        BLACKWELL,
        first(r"(0f3F317218;\s+)selp\.f32 \t(%r\d+), (%r\d+), 0fFF800000, %p\d+;", r"\1mov.b32 \t\2, \3;"),
        True,
    ),
    "a mask of 0": (BLACKWELL, first(r"(selp\.f32 \t%r\d+, %r\d+), 0fFF800000", r"\1, 0f00000000"), True),
    "weights exchanged": (
        BLACKWELL,
        first(r"(cvt\.rn\.bf16x2\.f32 \t%r\d+), (%r\d+), (%r\d+);", r"\1, \3, \2;"),
        True,
    ),
    "maximum scaled twice": (
        BLACKWELL,
        first(
            r"(mul\.f32 \t(%r\d+), (%r\d+), %r\d+;)(\s+mov\.b32 \t%r\d+, 0f00000000;\s+sub)",
            r"\1 mul.f32 \2, \2, \3;\4",
        ),
        True,
    ),
    "reciprocal applied twice": (
        BLACKWELL,
        first(r"(rcp\.approx\.ftz\.f32 \t(%r\d+), %r\d+;)", r"\1 mul.f32 \2, \2, \2;"),
        True,
    ),
    "LSE without its maximum": (
        BLACKWELL,
        first(r"fma\.rn\.f32 \t(%r\d+), %r\d+, %r\d+, (%r\d+);(\s+mul\.f32[^;]*0f3F317218)", r"mov.b32 \t\1, \2;\3"),
        True,
    ),
    "a product that does not accumulate": (BLACKWELL, first(r"(tcgen05\.mma[^;]*), 1;", r"\1, 0;"), False),
    "another instruction descriptor": (BLACKWELL, first(r"0x10200490", "0x10200491"), False),
    "another matrix descriptor": (BLACKWELL, first(r"(tcgen05\.mma[^;]*smem_desc_b_)1,", r"\g<1>2,"), False),
    "O rescaled by another row's factor": (
        BLACKWELL,
        first(r"(ld\.shared\.b32 \t%r\d+, \[%r\d+)\+332\](;\s+setp\.lt)", r"\1+336]\2"),
        False,
    ),
    "another lane of a shuffle": (GRADIENT, first(r"(shfl\.sync\.bfly\.b32 \t%r\d+, %r\d+), 1,", r"\1, 3,"), True),
    "dS with the opposite sign": (
        GRADIENT,
        first(r"sub\.f32 \t(%r\d+), (%r\d+), (%r\d+);(\s+mul\.f32 \t%r\d+, %r\d+, \1;)", r"sub.f32 \t\1, \3, \2;\4"),
        True,
    ),
    "P of another row's LSE": (
        GRADIENT,
        first(r"(ld\.shared\.v2\.b32 \t\{%r\d+, %r\d+\}, \[%r\d+)\+128\]", r"\1+136]"),
        False,
    ),
    "P without its LSE": (
        GRADIENT,
        first(r"sub\.f32 \t(%r\d+), (%r\d+), %r\d+;(\s+ex2)", r"mov.b32 \t\1, \2;\3"),
        True,
    ),
    "another factor of dQ": (
        GRADIENT,
        first(r"(Postprocess.*?mul\.f32 \t%r\d+), %r\d+, (%r\d+);", r"\1, \2, \2;"),
        True,
    ),
}


def swapped(pattern, other=None):
    """Return an edit that exchanges the first group of the first match with that of the next one (of `other`)."""

    def edit(ptx):
        one = re.search(pattern, ptx)
        if one is None or (two := re.compile(other or pattern).search(ptx, one.end())) is None:
            return ptx
        return ptx[: one.start(1)] + two[1] + ptx[one.end(1) : two.start(1)] + one[1] + ptx[two.end(1) :]

    return edit


# Of other kinds: control flow, places in memory, synchronisation, and exchanges between what looks alike.
OTHERS = {
    "a causal mask one column early": (HOPPER, first(r"(max\.s32[^;]*-32;\s+add\.s32[^;]*), 32;", r"\1, 31;"), False),
    "LSE of two rows exchanged": (HOPPER, swapped(r"st\.global\.b32 \t\[%rd\d+(?:\+32)?\], (%r\d+);"), False),
    "reciprocals of two rows exchanged": (HOPPER, swapped(r"rcp\.approx\.ftz\.f32 \t(%r\d+),"), True),
    "maxima of two rows exchanged": (
        HOPPER,
        swapped(r"selp\.f32 \t%r\d+, 0f00000000, (%r\d+), %p\d+"),
        True,
    ),
    "-A times B": (HOPPER, first(r", p, 1,  1,", ", p, -1,  1,"), False),
    "a product not waited for": (
        HOPPER,
        first(r"wgmma\.wait_group\.sync\.aligned \t0;", "wgmma.wait_group.sync.aligned 1;"),
        False,
    ),
    "a branch turned": (HOPPER, first(r"@(%p\d+ bra \t\$L__BB0_95;)", r"@!\1"), False),
    "a branch elsewhere": (HOPPER, first(r"bra \t\$L__BB0_95;", "bra $L__BB0_97;"), False),
    "every second tile": (HOPPER, first(r"(add\.s32 \t(%r\d+), \2), -1;", r"\1, -2;"), False),
    "another row of Q": (GEFORCE, first(r"(ldmatrix[^;]*\[%r\d+)\];", r"\1+128];"), False),
    "halves of K exchanged": (
        GEFORCE,
        first(r"(mma\.sync[^;]*\},\s+\{)(%r\d+), (%r\d+)\},(\s+\{[^}]*\};)", r"\1\3, \2},\4"),
        False,
    ),
    "V not transposed": (GEFORCE, first(r"(ldmatrix[^;]*)\.trans", r"\1"), False),
    "a barrier less": (GEFORCE, first(r"bar\.sync \t0;", ""), False),
    "half a row of K copied twice": (GEFORCE, first(r"(cp\.async\.cg[^;]*\[%rd\d+)\+128\]", r"\1]"), False),
    "delta of two rows exchanged": (DATACENTER, swapped(r"sub\.rn\.f32x2 \t%rd\d+, (%rd\d+), %rd\d+;"), True),
    "dQ added elsewhere": (DATACENTER, first(r"(cp\.reduce[^;]*\[)(%rd\d+)\]", r"\1\2+4096]"), False),
    "coordinates exchanged": (DATACENTER, first(r"(, \{%r\d+, )(%r\d+), (%r\d+), ", r"\1\3, \2, "), False),
    "operands of a product exchanged": (
        DATACENTER,
        first(r"(tcgen05\.mma[^;]*), smem_desc_a, smem_desc_b,", r"\1, smem_desc_b, smem_desc_a,"),
        False,
    ),
    "a fence less": (DATACENTER, first(r"fence\.proxy\.async\.shared::cta;", ""), False),
    "a store before its barrier": (
        DATACENTER,
        first(r"(st\.shared\.v4\.b32[^;]*;)(\s+fence[^;]*;\s+bar\.sync[^;]*;)", r"\2 \1"),
        False,
    ),
}


def seen(identity, edit):
    """Return whether an edit changes `program`, and `float_flow`, of what is compiled for a configuration."""
    before = [one.ptx for one in texts(identity)]
    after = [edit(ptx) for ptx in before]
    changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert changed, "the edit found nothing to edit"
    found = [(one, other) for pair in changed for one, other in zip(*map(digests, pair), strict=True)]
    return tuple(any(one[at] != other[at] for one, other in found) for at in (0, 1))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_edit_is_seen(name):
    identity, edit, of_floats = HOSTILE[name]
    assert seen(identity, edit) == (True, of_floats)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_an_edit_of_another_kind_is_seen(name):
    identity, edit, of_floats = OTHERS[name]
    assert seen(identity, edit) == (True, of_floats)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*HOSTILE, *OTHERS])
def test_no_hostile_edit_passes(name):
    """Against a contract that holds for the text as it is; the verdict names the digest where no other fact differs."""
    identity, edit, _ = {**HOSTILE, **OTHERS}[name]
    found = judge(result(identity, edit), contract_of([clean(identity)], {}, {}))
    assert found.verdict in ("FAIL", "INCONCLUSIVE")
    assert found.verdict == "FAIL" or any(".program is" in finding for finding in found.findings), found.findings


def renamed(ptx):
    """Other names for registers, labels, parameters and the kernel."""
    ptx = re.sub(r"%(r|rd|p|rs)(?=\d|<)", r"%other_\1", ptx)
    return re.sub(r"\$L__BB", "$Elsewhere", ptx).replace("kernel_cutlass", "another_name").replace("smem_desc", "there")


def reordered(ptx):
    """Neighbours of arithmetic that do not read or write each other's result, exchanged."""
    lines = ptx.split("\n")
    known = [re.match(r"\t(?:mul|fma|add|sub|max|cvt|selp|ex2)\S+ \t(%\w+), (.*);$", line) for line in lines]
    at = 0
    while at + 1 < len(lines):
        one, other = known[at : at + 2]
        if (
            one
            and other
            and one[1] not in re.findall(r"%\w+", other[0])
            and other[1] not in re.findall(r"%\w+", one[2])
        ):
            lines[at : at + 2] = lines[at + 1], lines[at]
            at += 1
        at += 1
    return "\n".join(lines)


def with_what_nobody_reads(ptx):
    """Add a product that goes nowhere, after each reciprocal, and a comment."""
    return re.sub(r"(rcp\.approx\.ftz\.f32 \t(%r\d+), %r\d+;)", r"\1 // or so\n mul.f32 %r1, \2, \2;", ptx)


@pytest.mark.parametrize("edit", [renamed, reordered, with_what_nobody_reads])
@pytest.mark.parametrize("identity", [BLACKWELL, GRADIENT])
def test_what_no_result_depends_on_is_not_seen(identity, edit):
    before = [one.ptx for one in texts(identity)]
    after = [edit(ptx) for ptx in before]
    assert after != before or (edit is with_what_nobody_reads and identity == GRADIENT)
    assert [*map(digests, after)] == [*map(digests, before)]


def entry(body, head=""):
    """Return an entry of these statements."""
    text = f".version 8.8\n.target sm_100a\n.address_size 64\n{head}\n.visible .entry k(.param .u32 k_param_0) {{\n"
    text += ".reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;\n"
    return parse(f"{text}{body}\nret;\n}}\n")


def program(body, head=""):
    module = entry(body, head)
    return program_fact(module.entries[0], module.variables)


LOOP = """mov.b32 %r1, 0; mov.b32 %r2, 1;
$L_1: add.s32 %r1, %r1, %r2; st.global.b32 [%rd1], %r1; setp.lt.s32 %p1, %r1, 9; @%p1 bra $L_1; @%p2 bra $L_2;
mov.b32 %r3, 5; bra $L_3; $L_2: mov.b32 %r3, 6; $L_3: st.global.b32 [%rd1+8], %r3; st.shared.b32 [%r9], %r1;"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[%rd1+8], %r3", "[%rd1+8], %r1"),
        ("%r3, 5; bra $L_3; $L_2: mov.b32 %r3, 6;", "%r3, 6; bra $L_3; $L_2: mov.b32 %r3, 5;"),
        ("@%p2", "@!%p2"),
        ("@%p1 bra $L_1", "@%p1 bra $L_2"),
        ("add.s32 %r1, %r1, %r2", "@%p3 add.s32 %r1, %r1, %r2"),
        (
            "st.global.b32 [%rd1+8], %r3; st.shared.b32 [%r9], %r1;",
            "st.shared.b32 [%r9], %r1; st.global.b32 [%rd1+8], %r3;",
        ),
        ("setp.lt.s32 %p1, %r1, 9", "setp.lt.s32 %p1, %r2, 9"),
        ("add.s32 %r1, %r1, %r2; st.global.b32 [%rd1], %r1;", "st.global.b32 [%rd1], %r1; add.s32 %r1, %r1, %r2;"),
    ],
)
def test_the_program_is_told_from_one_beside_it(old, new):
    """One statement, one branch, one side of a merge, one order of two stores."""
    assert old in LOOP
    assert program(LOOP).value != program(LOOP.replace(old, new)).value


def test_accumulators_are_read_in_place():
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, p, 1, 1, 0, 0;"
    tail = " st.global.b32 [%rd3], %r1;"
    scaled = "mul.f32 %r1, %r1, %r9; "
    assert program(product + tail).value != program(scaled + product + tail).value
    assert program(product.replace("p, 1, 1", "p, -1, 1") + tail).value != program(product + tail).value


def test_what_cannot_be_read_is_not_found():
    assert program("mov.b32 %r1, -%r2; st.global.b32 [%rd1], %r1;").value is None
    assert "first value" in program("st.global.b32 [%rd1], 1;", ".global .align 4 .b32 table = 7;").why
    assert program("st.global.b32 [%rd1], 1;", ".extern .shared .align 4 .b8 some[];").value
