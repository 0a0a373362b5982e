"""The gate's FP8 cases fail every FP8 kernel that is wrong on purpose, and pass its clean twin.

Today's FA4 passes; the historic setting (offset 8, threshold 4: P up to 4096, clamped at 448) fails.
"""

import msgspec
import pytest

from fa4verify import cases, flow
from fa4verify.vocabulary import EIGHT_BITS

from .fp8 import FAULTS, fp8_kernel_name

EMULATED = ("fa4-sm100", "fa3")
GATE = {
    case.id: case for case in cases.load_suite("gate").cases if case.dtype in EIGHT_BITS and case.kernel in EMULATED
}
OUTLIER = "fwd-fa4_sm100-e4m3-b2h4kv2q70k200d64-head-fa3_outlier-s0"
BLOCKS = "fwd-fa3-e4m3-b1h2kv1q200k300d64-block-fa3_outlier-s0"
ROTATED = "fwd-fa3-e4m3-b1h2kv1q200k300d64-block-incoherent-fa3_outlier-s0"
ONES = "fwd-fa4_sm100-e4m3-b1h1q128k512d64-head2-ones_v-period4-s0"
TAIL = "fwd-fa4_sm100-e4m3-b1h1q16k2048d32-scale0.693147-head2-tail_mass-gap15-s0"
CLAMPED = "fwd-fa4_sm100-{}-b1h1q64k256d64-head-normal-max_offset{}-s0"
DECODE = "fwd-fa4_sm100-e4m3-b2h6kv1q1k129d128-head-scaled_normal-factor1.2-s0"
STAIR = "fwd-fa4_sm100-e4m3-b1h1q64k256d32-scale0.693147-head2-max_staircase-delta3.5-s0"
LONG = "fwd-fa4_sm100-e4m3-b1h1q16k4096d32-head-long_sequence-s0"
CATCHES = {
    "saturation-missing": [CLAMPED.format("e5m2", 15.95)],
    "nan-for-satfinite": [CLAMPED.format("e4m3", 8.875)],
    "scale-of-next-block": [BLOCKS],
    "v-scale-of-first-block": [BLOCKS],
    "descale-of-next-head": [OUTLIER],
    "v-descale-forgotten": [OUTLIER],
    "signs-not-shared": [ROTATED],
    "offset-left-in-lse": [ONES],
    "p-flushed-below-2^-6": [TAIL],
    "p-truncated": [ONES, DECODE],
    "accumulator-of-10-bits": [OUTLIER, LONG],
    "v-tile-transposed": [OUTLIER],
    "tau-4": [STAIR, DECODE, ONES],
}


def outcome(case_id, kernel=None, **options):
    """Return the verdict's outcome and its findings in one line."""
    case = GATE[case_id]
    changed = {"kernel": kernel or case.kernel, "options": {**case.options, **options}}
    record = flow.verify(msgspec.structs.replace(case, **changed))
    return record.verdict.outcome, "; ".join(finding.message for finding in record.verdict.findings)


def test_every_mutant_has_its_case():
    assert set(CATCHES) == set(FAULTS)


@pytest.mark.parametrize(("mutant", "case_id"), [(m, case_id) for m, ids in CATCHES.items() for case_id in ids])
def test_the_gate_fails_it(mutant, case_id):
    found, why = outcome(case_id, fp8_kernel_name(mutant))
    assert found == "FAIL", f"{FAULTS[mutant]}: {found} {why}"


@pytest.mark.parametrize("case_id", GATE)
def test_the_clean_twins_pass(case_id):
    for kernel in (None, fp8_kernel_name("clean")):
        found, why = outcome(case_id, kernel)
        assert found == "PASS", f"{kernel}: {found} {why}"


@pytest.mark.parametrize("case_id", [DECODE, STAIR, ONES, OUTLIER])
def test_the_historic_setting_fails(case_id):
    found, why = outcome(case_id, rescale_threshold=4.0)
    assert found == "FAIL"
    assert "P clamped" in why


def test_the_finding_names_what_disagrees():
    _, why = outcome(ONES, rescale_threshold=4.0)
    assert "numerator/denominator mismatch: LSE is right, but" in why
    _, why = outcome("fwd-fa4_sm100-e4m3-b1h1q128k512d64-head-draws-normal-s0", rescale_threshold=4.0)
    assert "format ordering violated: e4m3 is worse than e5m2" in why


def test_hoppers_13_bits_shrink_a_long_row_and_blackwells_25_do_not():
    assert outcome(LONG)[0] == "PASS"
    found, why = outcome(LONG, accumulator_bits=13)
    assert found == "FAIL"
    assert "gain_error" in why
