"""Kernels wrong on purpose, made by editing FA4's PTX: each must fail, by the fact that it changes; the twin passes.

What an edit destroys so that it can no longer be read must be INCONCLUSIVE at least, never PASS. Reading a text takes
half a second, so that the fast suite makes several edits at once, each of which has to show; one by one they are
exhaustive.
"""

import functools
import re

import pytest

from fa4verify.kernels.shipped.audit.contract import contract_of, judge
from tests.kernels.shipped.audit.texts import BLACKWELL, FP8, GRADIENT, clean, needs_fa4, result

pytestmark = needs_fa4


def once(pattern, replacement):
    """Return an edit of the first match, which has to be there."""

    def edit(ptx):
        edited, count = re.subn(pattern, replacement, ptx, count=1)
        return edited if count else ptx

    return edit


def last(pattern, replacement):
    """Return an edit of the last match."""

    def edit(ptx):
        found = list(re.finditer(pattern, ptx))[-1]
        return ptx[: found.start()] + found.expand(replacement) + ptx[found.end() :]

    return edit


def everywhere(pattern, replacement):
    return lambda ptx: re.sub(pattern, replacement, ptx)


def by_hardware(ptx):
    """One column of the polynomial by MUFU: the share changes, and the columns."""
    argument = re.search(r"max\.f32 \t%r\d+, (%r\d+), 0fC2FE0000;", ptx)[1]
    return re.sub(r"mov\.b32 (%r\d+), out_i;", rf"ex2.approx.ftz.f32 \1, {argument};", ptx, count=1)


def two_adds_exchanged(ptx):
    """Two exponentials of the row sum change places."""
    adds = list(re.finditer(r"add\.rn\.f32x2 \t%rd\d+, %rd\d+, (%rd\d+);", ptx))
    first, second = adds[40], adds[41]
    swapped = ptx[: first.start(1)] + second[1] + ptx[first.end(1) : second.start(1)] + first[1]
    return swapped + ptx[second.end(1) :]


MUTANTS = {
    "another coefficient": (BLACKWELL, everywhere("0f3F31F519", "0f3F31F51A"), "coefficients"),
    "p0 below 1": (
        BLACKWELL,
        once(r"0f3F800000;(\s+mov\.b64 \t%rd\d+, \{%r\d+, %r\d+\};\s+fma)", r"0f3F7FFFFF;\1"),
        "p0",
    ),
    "tau 4": (BLACKWELL, everywhere("0fC1000000", "0fC0800000"), "tau"),
    "another share": (BLACKWELL, by_hardware, "exponentials"),
    "another column": (BLACKWELL, by_hardware, "emulated_columns"),
    "no clamp": (BLACKWELL, last(r"max\.f32 \t(%r\d+), (%r\d+), 0fC2FE0000;", r"mov.b32 \1, \2;"), "clamp"),
    "another clamp": (BLACKWELL, once("0fC2FE0000", "0fC2FC0000"), "clamp"),
    "another magic": (BLACKWELL, everywhere("0f4B400000", "0f4B000000"), "magic"),
    "round to nearest": (BLACKWELL, once(r"add\.rm\.f32x2", "add.rn.f32x2"), "magic"),
    "ex2 without ftz": (BLACKWELL, once(r"ex2\.approx\.ftz\.f32", "ex2.approx.f32"), "ex2"),
    "NaN kept": (BLACKWELL, once(r"max\.f32 \t(%r\d+, %r\d+, %r\d+, %r\d+);", r"max.NaN.f32 \t\1;"), "nan"),
    "another order": (BLACKWELL, two_adds_exchanged, "row_sum_order"),
    "a correct reciprocal": (BLACKWELL, everywhere(r"rcp\.approx\.ftz\.f32", "rcp.rn.f32"), "rcp"),
    "lg2 without ftz": (BLACKWELL, everywhere(r"lg2\.approx\.ftz\.f32", "lg2.approx.f32"), "lg2"),
    "another ln 2": (BLACKWELL, everywhere("0f3F317218", "0f3F317219"), "ln2"),
    "a minimum": (BLACKWELL, last(r"max\.f32 \t(%r\d+, %r\d+, %r\d+, %r\d+);", r"min.f32 \t\1;"), "max"),
    "keeps below the threshold": (BLACKWELL, once(r"setp\.ge\.f32 (\t%p\d+, %r\d+, 0fC1)", r"setp.lt.f32 \1"), "tau"),
    "P truncated": (BLACKWELL, once(r"cvt\.rn\.bf16x2\.f32", "cvt.rz.bf16x2.f32"), "p_conversion"),
    "P wraps": (FP8, everywhere(r"cvt\.rn\.satfinite\.e4m3x2", "cvt.rn.e4m3x2"), "p_conversion"),
    "FP8 offset 4": (FP8, everywhere("0f41000000", "0f40800000"), "offset"),
    "FP8 tau 4": (
        FP8,
        once(r"(mul\.f32 \t(%r\d+), [^;]+;\s+)(ex2\.approx\.ftz\.f32)", r"\1setp.ge.f32 %p1, \2, 0fC0800000;\n\3"),
        "tau",
    ),
    "atomics": (
        GRADIENT,
        everywhere(
            r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.add\.f32 \[(%rd\d+)\][^;]*;",
            r"red.global.add.f32 [\1], %r1;",
        ),
        "float_adds",
    ),
    "a semaphore": (
        GRADIENT,
        once(r"cp\.reduce", "red.release.gpu.global.add.s32 [%rd1], 1;\ncp.reduce"),
        "semaphores",
    ),
    "MUFU without ftz": (GRADIENT, once(r"ex2\.approx\.ftz\.f32", "ex2.approx.f32"), "ex2"),
    "another log2 e": (GRADIENT, everywhere("0f3FB8AA3B", "0f3FB8AA3C"), "log2e"),
    "dS truncated": (GRADIENT, everywhere(r"cvt\.rn\.bf16x2\.f32", "cvt.rz.bf16x2.f32"), "ds_conversion"),
}


TOGETHER = (
    ("another coefficient", "tau 4", "another magic", "ex2 without ftz", "NaN kept", "lg2 without ftz", "another ln 2"),
    ("a minimum", "keeps below the threshold"),
    ("p0 below 1", "another share", "another column", "no clamp", "another order", "a correct reciprocal"),
    ("P wraps", "FP8 offset 4", "FP8 tau 4"),
    ("a semaphore", "atomics", "MUFU without ftz", "another log2 e", "dS truncated"),
)


def verdict_on(names):
    """Judge a text with these edits against a contract that holds for the text without."""
    identity = MUTANTS[names[0]][0]
    edits = [MUTANTS[name][1] for name in names]
    edited = result(identity, lambda ptx: functools.reduce(lambda text, edit: edit(text), edits, ptx))
    return judge(edited, contract_of([clean(identity)], {}, {}))


@pytest.mark.parametrize("names", TOGETHER)
def test_mutants_fail_by_the_facts_they_change(names):
    found = verdict_on(names)
    assert found.verdict == "FAIL"
    for name in names:
        assert any(MUTANTS[name][2] in finding for finding in found.findings), (name, found.findings)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_by_the_fact_it_changes(name):
    found = verdict_on((name,))
    assert found.verdict == "FAIL"
    assert any(MUTANTS[name][2] in finding for finding in found.findings), found.findings


@pytest.mark.parametrize("identity", [BLACKWELL, FP8, GRADIENT])
def test_the_untouched_twin_passes(identity):
    found = judge(clean(identity), contract_of([clean(identity)], {}, {}))
    assert (found.verdict, found.findings) == ("PASS", ())


def of_the_first_polynomial(what, put):
    """Return an edit of one operand of the first emulation; names are what its instructions say."""

    def edit(ptx):
        found = re.search(
            r"sub\.rn\.f32x2 \t(?P<back>%rd\d+), (?P<rounded>%rd\d+), %rd\d+;\s+"
            r"sub\.rn\.f32x2 \t(?P<rest>%rd\d+), (?P<clamped>%rd\d+), (?P=back);.*?"
            r"fma\.rn\.f32x2 \t(?P<one>%rd\d+), (?P<top>%rd\d+), (?P=rest), %rd\d+;.*?"
            r"fma\.rn\.f32x2 \t%rd\d+, (?P=one), (?P=rest), ",
            ptx,
            re.DOTALL,
        )
        before, after = (text.format(**found.groupdict()) for text in (what, put))
        assert before in found[0]
        return ptx[: found.start()] + found[0].replace(before, after) + ptx[found.end() :]

    return edit


UNREADABLE = {
    "a remainder by addition": of_the_first_polynomial(
        "sub.rn.f32x2 \t{rest}, {clamped}", "add.rn.f32x2 \t{rest}, {clamped}"
    ),
    "a polynomial in the whole argument": of_the_first_polynomial("{one}, {top}, {rest}", "{one}, {top}, {clamped}"),
    "a squared step": of_the_first_polynomial(", {one}, {rest}, ", ", {one}, {one}, "),
    "a shift that is none": everywhere(r"x_rounded_i, 23;", "x_rounded_i, 22;"),
    "no exponential": everywhere(r"ex2\.approx\.ftz\.f32", "sqrt.approx.ftz.f32"),
    "no comparison of the maximum": everywhere(r"sub\.f32 \t(%r\d+), (%r\d+), (%r\d+);", r"rem.f32 \t\1, \2, \3;"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if at else ()) for at, name in enumerate(UNREADABLE)]
)
def test_what_cannot_be_read_does_not_pass(name):
    found = judge(result(BLACKWELL, UNREADABLE[name]), contract_of([clean(BLACKWELL)], {}, {}))
    assert found.verdict != "PASS"


def test_fp8_with_a_threshold_breaks_a_rule_without_any_contract():
    """Release 4.0.0b20: tau 4 beside an offset of 8, so that P reaches 4096 and e4m3 ends at 448."""
    identity, edit, _ = MUTANTS["FP8 tau 4"]
    found = judge(result(identity, edit), contract_of([], {}, {}))
    assert found.verdict == "FAIL"
    assert any("2^12" in finding and "448" in finding for finding in found.findings)
