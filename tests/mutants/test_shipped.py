"""Every PTX mutant of FA4's own kernels is noticed, its untouched twin passes, and the silent ones are silent.

shipped.py is the catalogue, docs/mutants.md the table. Four kernels are compiled (or read from the cache): forward for
sm_90a and sm_100a, backward for sm_90a with its pre- and postprocess.
"""

from itertools import takewhile

import pytest

pytest.importorskip("flash_attn.cute.interface", exc_type=ImportError)

import msgspec

from fa4verify import cases, flow, kernels
from fa4verify.kernels.shipped.execution import using

from .ptx_edits import Edit, Moved
from .shipped import CASES, CLEAN, MUTANTS, OF
from .shipped_judge import SUITE, judged, suite

NOTICED = [name for name, mutant in MUTANTS.items() if not mutant.entry.silent]
SILENT = [name for name, mutant in MUTANTS.items() if mutant.entry.silent]
TWINS = sorted({(mutant.case, mutant.entry.schedule) for mutant in MUTANTS.values()})
# Noticed by bits alone: without bits_unlike_baseline the gate would let them through.
ONLY_BITS = [
    "sm90-ln2-ulp",
    "sm90-scale-ulp",
    "sm90-row-sum-swapped",
    "sm90-row-sum-unfused",
    "sm90-lse-unfused",
    "sm90-max-forgets",
    "sm90-lg2-plus-ulp",
    "sm100-p1-ulp",
    "sm100-p2-256-ulp",
    "sm100-p3-1024-ulp",
    "sm100-ln2-ulp",
    "sm100-tau-ulp",
    "sm100-tau-strict",
    "sm100-row-sum-swapped",
    "sm100-max-forgets",
    "sm90-bwd-log2e-ulp",
    "sm90-bwd-p-truncated",
    "sm90-bwd-dq-scale-ulp",
    "sm90-bwd-dq-turn",
]


def found(name):
    return judged(CASES[MUTANTS[name].case], MUTANTS[name].kernel)


@pytest.fixture(scope="module")
def texts():
    """PTX of every entry that the mutants' cases launch, by entry."""
    seen = {}

    def record(entry, text):
        seen[entry] = text
        return text

    with using(edit=record):
        for case in ("sm90-backward", "sm100"):  # a backward launches its forward too
            chosen = suite()[CASES[case]]
            kernels.run(chosen, cases.draw(chosen))
    return seen


@pytest.mark.parametrize(("case", "schedule"), TWINS)
def test_the_untouched_twins_pass(case, schedule):
    twin = judged(CASES[case], CLEAN[OF[case], schedule])
    assert twin.outcome == "PASS", twin.message
    assert set(twin.unlike.values()) == {0}
    assert len(twin.unlike) == (3 if "backward" in case else 2)


@pytest.mark.parametrize("name", NOTICED)
def test_every_mutant_is_noticed(name):
    mutant = found(name)
    assert mutant.outcome == (MUTANTS[name].entry.fault or "FAIL"), mutant.message
    if mutant.outcome == "FAIL":
        assert any(mutant.unlike.values())
        assert mutant.by_errors == (name not in ONLY_BITS), mutant.failed


@pytest.mark.parametrize("name", SILENT)
def test_the_silent_ones_change_no_bit(name):
    mutant = found(name)
    assert mutant.outcome == "PASS", f"it is noticed after all: {mutant.failed} {mutant.message}"
    assert not any(mutant.unlike.values())
    assert len(MUTANTS[name].entry.silent) > 40, "say why"


def test_there_are_enough_of_them():
    assert len(NOTICED) >= 20
    for kernel in ("flash_fwd_sm90", "flash_fwd_sm100", "flash_bwd_sm90", "bwd_preprocess", "bwd_postprocess"):
        assert sum(kernel in MUTANTS[name].entry.edit.entry for name in NOTICED) >= 2
    for word in ("wait", "arrive", "barrier", "ulp"):
        assert sum(word in name for name in NOTICED) >= 2


def test_every_edit_changes_one_place_of_one_entry(texts):
    assert len(texts) == 5
    for name, mutant in MUTANTS.items():
        changed = [entry for entry, text in texts.items() if mutant.entry.edit(entry, text) != text]
        assert len(changed) == 1, name
        before = texts[changed[0]].split("\n")
        after = mutant.entry.edit(changed[0], texts[changed[0]]).split("\n")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        rest = zip(reversed(before[same:]), reversed(after[same:]), strict=False)
        tail = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
        assert 1 <= len(before) - same - tail <= 3, name


def test_an_edit_that_is_not_where_it_was_says_so():
    text = "add.f32 \t%r1, %r2, %r3;\n\tadd.f32 \t%r4, %r1, %r5;\n"
    swapped = Edit("fwd", "add.f32 %r, %r, %r;", r"add.f32 \1, \3, \2;", nth=1, of=2)
    assert swapped.applied(text) == "add.f32 \t%r1, %r2, %r3;\n\tadd.f32 %r4, %r5, %r1;\n"
    chained = Edit("fwd", r"add.f32 %r, %r, %r; add.f32 %r, \1, %r;", r"\5")
    assert chained.applied(text) == "%r5\n"
    assert swapped("bwd", text) == text
    for pattern, count in (("mul.f32 %r, %r, %r;", 1), ("add.f32 %r, %r, %r;", 1), ("add.f32 %r, %r, %r;", 3)):
        with pytest.raises(Moved, match="places in fwd, expected"):
            Edit("fwd", pattern, of=count).applied(text)
    with pytest.raises(Moved, match="by itself"):
        Edit("fwd", "add.f32 \t%r1", "add.f32 \t%r1").applied("add.f32 \t%r1")


def test_the_cases_tell_attention_from_something_trivial():
    flow.admit(cases.load_suite(str(SUITE)))
    assert set(CASES.values()) == set(suite())


def test_a_mutant_is_a_kernel_by_name():
    case = msgspec.structs.replace(
        suite()[CASES["sm90"]], kernel="tests.mutants.shipped:kernels.sm90_ln2_ulp", substituted=True
    )
    record = flow.verify(case)
    assert record.verdict.outcome == "FAIL"
    failed = [finding for finding in record.verdict.findings if not finding.passed]
    assert [(finding.tensor, finding.metric) for finding in failed] == [("lse", "bits_unlike_baseline")]
    crashed = flow.verify(msgspec.structs.replace(case, kernel="tests.mutants.shipped:kernels.sm90_tx_bytes"))
    assert crashed.verdict.outcome == "CRASHED"
    assert "Deadlock" in crashed.verdict.findings[0].message
