"""Room 4: how far off, and is that good enough."""

from fa4verify.judgement.bits import of_bits, rounded
from fa4verify.judgement.determinism import admit as admit_runs
from fa4verify.judgement.determinism import checked as checked_runs
from fa4verify.judgement.determinism import flag
from fa4verify.judgement.determinism import judge as judge_runs
from fa4verify.judgement.fa_rule import fa_rule
from fa4verify.judgement.metrics import measure
from fa4verify.judgement.repetition import measure as measure_runs
from fa4verify.judgement.repetition import observe
from fa4verify.judgement.vacuity import admit
from fa4verify.judgement.verdict import checked, judge

__all__ = [
    "admit",
    "admit_runs",
    "checked",
    "checked_runs",
    "fa_rule",
    "flag",
    "judge",
    "judge_runs",
    "measure",
    "measure_runs",
    "observe",
    "of_bits",
    "rounded",
]
