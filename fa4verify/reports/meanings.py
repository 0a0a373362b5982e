"""What a number in a report means, in a sentence or two: the columns of the tables, the metrics behind limits.

Contract: every column of `measures.MEASURES` and every metric of the vocabulary has a meaning (a test holds that).
The full text with formulas, and when each misleads, is docs/metrics.md.
"""

from __future__ import annotations

from fa4verify.vocabulary import ACTIVITY

COLUMNS: dict[str, dict[str, str]] = {
    "forward": {
        "O rmse": "Root mean square error of O against float64 truth, in O's own unit.",
        "/floor": "RMSE of O over that of a correctly rounded O: 1 is the best a 16-bit output can be.",
        "/base": "RMSE of O over that of the baseline kernel (attention in the same dtype) on the same inputs.",
        "max ulp": "Largest error of an element of O in units of its last place. Thousands are normal where O cancels.",
        "LSE max": "Largest absolute error of the log-sum-exp, in nats.",
        "FA rule": "What FlashAttention's own test says: max|O - ref| <= 2 max|pt - ref| + 2 max|rounding of ref|.",
        "skip": "Share of rescales that were skipped because the maximum grew by less than the threshold.",
        "emu": "Share of exponentials evaluated by the polynomial instead of the special-function unit.",
    },
    "exp2": {
        "max rel": "Largest relative error of 2^x.",
        "rmse rel": "Root mean square relative error of 2^x.",
        "mean rel": "Mean relative error of 2^x, signed: a bias.",
        "max ulp": "Largest error in units of the last place of fp32.",
        "bf16 diff": "Share of results that differ from the truth once both are rounded to bf16.",
        "fp16 diff": "Share of results that differ from the truth once both are rounded to fp16.",
    },
    "backward": {
        "dQ rmse": "Root mean square error of dQ against float64 truth, in its own unit.",
        "dK rmse": "Root mean square error of dK against float64 truth, in its own unit.",
        "dV rmse": "Root mean square error of dV against float64 truth, in its own unit.",
        "/floor": "RMSE of the gradient before this column over that of a correctly rounded one.",
        "worst row": "Largest relative L2 error of a row of dQ, dK or dV. A row that cancels is large in any kernel.",
        "delta max": "Largest absolute error of delta = rowsum(O * dO).",
        "dsink max": "Largest absolute error of the gradient of the sink.",
    },
    "repeat": {
        "runs": "How often the case was run on the same inputs.",
        "O bits": "Different bit patterns of O in all runs; 1 is deterministic.",
        "dQ bits": "Different bit patterns of dQ in all runs; 1 is deterministic.",
        "dK bits": "Different bit patterns of dK in all runs; 1 is deterministic.",
        "dV bits": "Different bit patterns of dV in all runs; 1 is deterministic.",
        "shuffled": "Bit patterns of dQ when the order of adds is random: 1 means that the case could not have shown.",
        "dQ differ": "Share of elements of dQ that differ from the first run's, the mean over the other runs.",
        "dQ max diff": "Largest difference of an element of dQ between runs.",
        "rate <": "How often a run leaves the commonest bits of dQ, at most, with 95 % confidence.",
    },
    "audit": {},
}

METRICS: dict[str, str] = {
    "rmse": "Root mean square error, in the tensor's own unit. One wrong row of thousands hardly moves it.",
    "truth_rms": "Root mean square of the truth.",
    "relative_rmse": "RMSE over the RMS of the truth. Large elements hide wrong small ones.",
    "max_abs": "Largest absolute error. Grows with the size of the tensor for the same kernel.",
    "worst_row_relative_l2": "Largest relative L2 error of a row: one wrong row shows.",
    "mean_error": "Mean error, signed: a bias. Cancels where the truth has both signs.",
    "mean_error_standard_error": "Standard error of the mean error, with rows as independent units.",
    "gain_error": "The part of the error that is a factor on the output: 0.01 means 1 % too large.",
    "mean_ulp": "Mean error in units of the last place, signed: the bias of a rounding.",
    "mean_ulp_standard_error": "Standard error of the mean error in ulp.",
    "ulp_p50": "Median error in units of the last place.",
    "ulp_p99": "Error in ulp that 99 % of the elements do not exceed.",
    "ulp_p999": "Error in ulp that 99.9 % of the elements do not exceed.",
    "ulp_max": "Largest error in ulp. Thousands are normal where an output cancels to nearly 0.",
    "floor_rmse": "RMSE of a correctly rounded output.",
    "floor_max_abs": "Largest error of a correctly rounded output.",
    "expected_rmse": "RMSE that the model of a correct kernel of FA4's algorithm predicts for these inputs.",
    "input_rmse": "Against the draws: what exact attention on the rounded inputs is off by; no kernel can help it.",
    "rmse_on_inputs": "Against the draws: the RMSE of the kernel from exact attention on the rounded inputs.",
    "head_spread": "Against the draws: standard deviation over heads of the RMSE of a head, over their mean.",
    "bits_unlike_baseline": "Elements whose bits are not those of the baseline kernel on the same inputs.",
    "equal_to_baseline": "Share of the elements whose bits are those of the baseline kernel on the same inputs.",
    "ulp_from_baseline": "Most steps through the numbers of the format from an element to the baseline kernel's.",
    "nonfinite_mismatches": "Elements that are NaN or infinite where they should not be, or the other way round.",
    "keyless_rows_not_zero": "Rows that see no key and are not exactly 0.",
    "elements": "Number of elements.",
    "fa_rule_value": "Left side of FlashAttention's own rule: the largest difference.",
    "fa_rule_limit": "Right side of FlashAttention's own rule.",
    "distinct": "Different bit patterns in all runs.",
    "max_difference": "Largest difference of an element between runs.",
    "differing_share": "Share of elements that differ from the first run's.",
    "rate_bound": "Largest rate, with 95 % confidence, at which a run leaves the commonest bits.",
    "distinct_shuffled": "Different bit patterns when the order of adds is random: 1 means nothing could have shown.",
    "max_relative": "Largest relative error.",
    "mean_relative": "Mean relative error, signed.",
    "rmse_relative": "Root mean square relative error.",
    "bf16_mismatch_rate": "Share of results that differ from the truth once both are rounded to bf16.",
    "fp16_mismatch_rate": "Share of results that differ from the truth once both are rounded to fp16.",
    "special_mismatches": "Wrong results on NaN, infinities, overflow and underflow.",
    "declared_mismatches": "Results whose bits are not those of the polynomial that the case declares.",
}

KINDS: dict[str, str] = {
    "absolute": "the limit is in the metric's own unit",
    "ulp": "the limit is in units of the last place of the output's dtype",
    "ratio_to_baseline": "the limit is that many times the baseline kernel's metric on the same inputs",
    "ratio_to_floor": "the limit is that many times the metric of a correctly rounded output",
    "expected_error": "the limit is that many times the error that the model of a correct kernel predicts",
    "equals": "the metric may differ from a value by the limit, to either side",
}

TENSORS: dict[str, str] = {
    "o": "O, the output",
    "lse": "LSE, the log-sum-exp of a row of scores",
    "y": "y = 2^x",
    "dq": "dQ, the gradient of the queries",
    "dk": "dK, the gradient of the keys",
    "dv": "dV, the gradient of the values",
    "delta": "delta, the row sum of O * dO",
    "dsink": "dsink, the gradient of the learnable sink",
}

STATUSES: dict[str, str] = {
    "PASS": "every limit was measured and held",
    "FAIL": "a limit was broken, a value is NaN or infinite where it must not be, or the kernel broke its contract",
    "CRASHED": "something raised, or the process died",
    "TIMEOUT": "the case took longer than it may",
    "INCONCLUSIVE": "nothing is known to be wrong, but the case could not be judged",
    "SKIPPED": "the kernel declines the case, with the reason; it counts neither way",
    "MISSING": "the run ended before the case was done",
}


def of(name: str) -> str:
    """Return what a metric or an activity counter means, empty for a name of somebody else's."""
    return METRICS.get(name) or ACTIVITY.get(name, "")
