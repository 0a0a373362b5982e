"""The nouns of fa4verify: what walks from room to room.

Contract: frozen data without behaviour. What is written to disk (Case, Budget, Finding, Verdict, Record) is a msgspec
struct and round-trips through strict JSON; what only lives in memory (Inputs, Output, Truth) is a dataclass holding
tensors. Nothing here imports torch or numpy at run time.

Shapes follow FlashAttention: q is (batch, seqlen_q, heads, head_dim), k is (batch, seqlen_k, heads_kv, head_dim),
v is (batch, seqlen_k, heads_kv, head_dim_v), o is (batch, seqlen_q, heads, head_dim_v) in the input dtype and lse is
float32 (batch, heads, seqlen_q), natural logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch

Operation = Literal["forward", "exp2", "backward", "repeat", "audit"]
DType = Literal["bf16", "fp16", "e4m3", "e5m2"]
EIGHT_BITS = ("e4m3", "e5m2")  # forward only; O is then bf16
Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "CRASHED", "TIMEOUT"]
BudgetKind = Literal["absolute", "ulp", "ratio_to_baseline", "ratio_to_floor", "expected_error", "equals"]
Scalar = bool | int | float | str | None

# The counters a kernel may report in Output.activity; a case may require any of them to be above zero.
ACTIVITY = {
    "rescales_done": "row and KV tile, not the first, where the new maximum was adopted and O rescaled",
    "rescales_skipped": "row and KV tile whose maximum exceeds the reference, but not by the threshold: not adopted",
    "emulated_exp2": "exponentials of P evaluated by the polynomial",
    "hardware_exp2": "exponentials of P evaluated by MUFU",
    "tiles_visited": "KV tiles visited, summed over rows",
    "tiles_masked": "KV tiles visited by a row of which it may see no key",
    "max_p": "largest P before rounding",
    "rows_dominant_not_one": "rows whose largest weight entered PV as a P other than 1",
    "p_saturated": "P values that the conversion clamped or turned into inf",
}

# The tensors that each operation is judged on, and the metrics that exist for them (docs/metrics.md).
TENSORS = {
    "forward": ("o", "lse"),
    "exp2": ("y",),
    "backward": ("dq", "dk", "dv", "delta", "dsink"),
    "repeat": ("o", "lse", "dq", "dk", "dv"),
    "audit": (),  # what it is judged on is no tensor: docs/audit.md
}
# Bit by bit against the baseline's output: elements unlike, share of equal ones, largest distance in ulp.
BITS = "bits_unlike_baseline"
OF_BITS = (BITS, "equal_to_baseline", "ulp_from_baseline")
METRICS = (
    "rmse",
    "truth_rms",
    "relative_rmse",
    "max_abs",
    "worst_row_relative_l2",
    "mean_error",
    "mean_error_standard_error",
    "gain_error",
    "mean_ulp",
    "mean_ulp_standard_error",
    "ulp_p50",
    "ulp_p99",
    "ulp_p999",
    "ulp_max",
    "floor_rmse",
    "floor_max_abs",
    "expected_rmse",
    "input_rmse",
    "rmse_on_inputs",
    "head_spread",
    "nonfinite_mismatches",
    "keyless_rows_not_zero",
    "elements",
    *OF_BITS,
    "fa_rule_value",
    "fa_rule_limit",
)
REPEAT_METRICS = ("distinct", "max_difference", "differing_share", "rate_bound", "distinct_shuffled")
EXP2_METRICS = (
    "max_relative",
    "mean_relative",
    "rmse_relative",
    "bf16_mismatch_rate",
    "fp16_mismatch_rate",
    "special_mismatches",
    "declared_mismatches",
)


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of one attention problem; `heads` is a multiple of `heads_kv`, `head_dim_v` defaults to `head_dim`."""

    batch: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    heads: int = 1
    heads_kv: int = 1
    head_dim: int = 128
    head_dim_v: int = 128


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named generator of inputs with its arguments (see `fa4verify list distributions`)."""

    name: str
    arguments: dict[str, Any] = {}


class Quantisation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How drawn numbers become 8-bit codes; nothing of it touches a 16-bit case.

    scales
        none: the number itself, saturated. tensor: one scale each for q, k and v. head: one for each batch and KV head,
        FA4's. block: one for each 128 tokens of a head. A scale is the largest magnitude over the format's largest.
    power_of_two
        Scales are rounded up to powers of two.
    incoherent
        Q and K are first rotated along the head dim by the same random orthogonal matrix.
    """

    scales: Literal["none", "tensor", "head", "block"] = "none"
    power_of_two: bool = False
    incoherent: bool = False


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One limit on one metric of one output tensor, and where the number comes from.

    kind:
      absolute           metric <= limit, in the metric's own unit
      ulp                metric (an ulp quantile or count) <= limit, in ulp of the output dtype
      ratio_to_baseline  metric <= limit * the same metric of the baseline kernel
      ratio_to_floor     metric <= limit * the same metric of a correctly rounded output
      expected_error     metric <= limit * the error that the model of a correct kernel predicts
      equals             |metric - value| <= limit
    """

    name: str
    tensor: str
    metric: str
    kind: BudgetKind
    limit: float
    provenance: str
    value: float = 0.0


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to verify. `id` is readable, unique in its suite, and the only source of the seed.

    `options` are keyword arguments of the kernel beyond FlashAttention's own (degree, rescale_threshold, ...);
    `requires` names activity counters that must not be zero, else the verdict is INCONCLUSIVE; `substituted` says
    that the kernel stands in place of the suite's own (`--kernel`). `truth` says what the reference reads: the inputs
    as the kernel gets them, or (forward) the float64 numbers before any rounding. `label` names a line of a study.
    `baseline` is a kernel, or "e5m2": the case's own kernel on the same draws in that format. `deterministic` and
    `lse_gradient` (the loss also depends on LSE) are for backward and repeat, `runs` and `loaded` (a GPU's second
    stream is kept busy) for repeat.
    """

    id: str
    operation: Operation
    kernel: str
    distribution: Distribution
    dtype: DType = "bf16"
    shape: Shape = Shape()
    causal: bool = False
    window_size: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    learnable_sink: bool = False
    softmax_scale: float | None = None
    deterministic: bool = True
    lse_gradient: bool = False
    runs: int = 20
    loaded: bool = False
    options: dict[str, Any] = {}
    seed: int = 0
    quantisation: Quantisation = Quantisation()
    truth: Literal["inputs", "draws"] = "inputs"
    label: str = ""
    baseline: str | None = None
    budgets: tuple[Budget, ...] = ()
    requires: tuple[str, ...] = ()
    timeout_s: float = 120.0
    suite: str = ""
    substituted: bool = False


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the records of a suite become curves.

    One table for each combination of `tables`, a line for each value of `rows`, a column for each of `columns` and
    `values`. `rows`, `columns` and `tables` are dotted paths into a Case ("dtype", "options.rescale_threshold",
    "distribution"), `values` are "tensor.metric" or "activity.counter" paths into a Record, or a ratio of two of
    them, "o.rmse/floor_rmse". `relative_to` is the row whose value the ratios to a line divide by. `published` holds
    figures of a paper by row: beside the first value stand the figure, the deviation from it and the spread over the
    cases of the point.
    """

    rows: str
    columns: tuple[str, ...]
    values: tuple[str, ...]
    tables: tuple[str, ...] = ()
    relative_to: Scalar = None
    published: dict[str, float] = {}


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named list of cases. With a `study`, a FAIL is a point of the curve, not of the exit code."""

    name: str
    about: str
    cases: tuple[Case, ...]
    study: Study | None = None


@dataclass(frozen=True)
class Inputs:
    """Tensors as drawn, exactly representable in the case's dtype.

    `draws` holds q, k and v in float64 as they were before any rounding, where the case needs them. 8-bit inputs with
    scales also have `q_descale`, `k_descale`, `v_descale`, float32 (batch, heads_kv), for scales of blocks
    (batch, heads or heads_kv, blocks): a code times its descale is the number.

    forward: q, k, v and, with a learnable sink, `learnable_sink` float32 (heads,). backward and repeat: also `dout`
    like o and, with an LSE gradient, `dlse` float32 (batch, heads, seqlen_q). exp2: `x` float32 (n,).
    """

    tensors: Mapping[str, torch.Tensor]
    draws: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """What a kernel gave.

    A forward gives o and lse, exp2 gives y float32 (n,), a backward gives dq, dk, dv in the input dtype, delta
    (rowsum of o * dout) float32 (batch, heads, seqlen_q) and, with a learnable sink, dsink float32 (heads,).
    `activity` counts what the kernel did over the whole call (rescales_done, rescales_skipped, emulated_exp2,
    hardware_exp2, tiles_masked, max_p, ...); `activity_per_row` holds the counters that exist per row as
    (batch, heads, seqlen_q) integer arrays. `provenance` says what ran (package versions, device, model).
    """

    o: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    y: torch.Tensor | None = None
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None
    delta: torch.Tensor | None = None
    dsink: torch.Tensor | None = None
    activity: Mapping[str, float] = field(default_factory=dict)
    activity_per_row: Mapping[str, np.ndarray] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Truth:
    """The reference's values in float64, one array for each output tensor, shaped like the output.

    `radius` bounds |value - exact| for each tensor, certified by ball arithmetic on the sampled rows in
    `sampled_rows` ((n, 3) indices batch, head, row). `moments` holds what the model of a correct kernel's error is
    made of (docs/budgets.md), where a budget asks for it: `spread` = sqrt(sum_j w_j^2 v_j^2), shaped like o, and
    `row_max` = the largest scaled score in nats, shaped like lse. `declared` (exp2) is what the declared polynomial
    gives in float32.
    """

    tensors: Mapping[str, np.ndarray]
    radius: Mapping[str, float] = field(default_factory=dict)
    sampled_rows: np.ndarray | None = None
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the error of one tensor lies and how large it is: what figures are drawn from (docs/reports.md).

    errors, floors
        Counts of |e|, and of the error of a correctly rounded output, two bins an octave: bin i holds
        [1, 1.5) 2^k for even i and [1.5, 2) 2^k for odd, where k = (first + i) // 2, `first` being the bin's code of
        `errors_from` or `floors_from`. What is exactly 0 is counted in `exact` and `floor_exact` instead.
    ulps
        Counts of e / ulp(truth), signed, in bins of a quarter ulp around -4.25 ... 4.25; the outermost hold all beyond.
    in_tile
        128 numbers, one for each column of a tile of 128 keys. lse: largest |e| of the rows that one key of that column
        decides (weight over 1/2) and whose |LSE| is 32 at most; dk, dv: RMSE of the keys of that column over the
        tensor's `truth_rms`.
    octave
        y: largest |relative error| in each of 128 equal parts of the fraction of x.
    rows
        A line for each head of each batch (or neighbouring heads), a column for each block of tokens: largest relative
        L2 error of a row there.
    radius
        Certified bound on the truth's own error, on the sampled rows.
    worst_key
        o, lse: the key that weighs most in the row that decided `max_abs`.

    `in_tile`, `octave` and `rows` hold round(16 log2 x), None where there is no x.
    """

    errors: tuple[int, ...] = ()
    errors_from: int = 0
    exact: int = 0
    floors: tuple[int, ...] = ()
    floors_from: int = 0
    floor_exact: int = 0
    ulps: tuple[int, ...] = ()
    in_tile: tuple[int | None, ...] = ()
    octave: tuple[int | None, ...] = ()
    rows: tuple[tuple[int | None, ...], ...] = ()
    radius: float | None = None
    worst_key: int | None = None


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on one tensor: finite numbers only (docs/metrics.md lists them).

    `where` gives the index of the element or row that decided a maximum. `classes` counts elements by class of
    expected and actual value, "finite>nan": 3 and the like; only pairs that occur are listed.
    """

    values: dict[str, float]
    where: dict[str, tuple[int, ...]] = {}
    classes: dict[str, int] = {}
    profile: Profile | None = None


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sentence of a verdict: what was measured against what, where, and how to see it again."""

    message: str
    tensor: str | None = None
    metric: str | None = None
    value: float | None = None
    limit: float | None = None
    where: tuple[int, ...] | None = None
    budget: str | None = None
    passed: bool = False


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome with its findings. A PASS without a passed budget cannot be built."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        if self.outcome == "PASS" and not any(finding.passed for finding in self.findings):
            raise ValueError("a PASS needs at least one budget that was measured and held")
        if self.outcome == "PASS" and not all(finding.passed for finding in self.findings):
            raise ValueError("a PASS cannot hold a finding that failed")
        if self.outcome != "PASS" and not self.findings:
            raise ValueError(f"a verdict {self.outcome} needs a finding that says why")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case, what was measured and the verdict: one line of a run file.

    `metrics` and `baseline` (the baseline kernel on the same inputs) are keyed by tensor; `checked[tensor]` is
    "checked" or the reason why not. `seconds` holds the wall time of each stage. `command` reruns the case.
    """

    case: Case
    verdict: Verdict
    metrics: dict[str, Metrics] = {}
    baseline: dict[str, Metrics] = {}
    activity: dict[str, float] = {}
    checked: dict[str, str] = {}
    seconds: dict[str, float] = {}
    provenance: dict[str, str] = {}
    command: str = ""
