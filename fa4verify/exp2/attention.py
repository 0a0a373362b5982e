"""Coefficient sets inside attention: what of an exponential's error reaches O and LSE, and what a rounding hides.

Contract: `effects` runs the emulation `fa4-sm100` with each set on the columns that FA4 emulates for the shape (or on
all), and with MUFU alone, on the same inputs; errors are against the float64 reference. O is taken twice from one run:
before its rounding and as stored. Errors of several seeds are pooled: RMSE as the root of the mean square.
One seed scatters by 0.2 % in bf16 and 0.5 % in fp16 (docs/studies.md), so ratios next to 1 need several.
Known failure mode: in rows that see one key O is V exactly, whatever the exponential: both errors are 0, no ratio.
The only module of the laboratory that knows kernels, cases, references and judgement.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from fa4verify import cases, judgement, kernels, references
from fa4verify.exp2.hardware import NAME as MUFU
from fa4verify.vocabulary import Case, Distribution, Output, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fa4verify.exp2.sets import CoefficientSet
    from fa4verify.vocabulary import Inputs, Truth

Columns = Literal["table", "all"]
KERNEL = "fa4-sm100"
DTYPES = ("bf16", "fp16")
SEQLEN, HEAD_DIM = 512, 128
_EVERYTHING = (None, None)
# "one key" sees the key of its own position alone: S c - fl(max c) is a rounding error, and where that is negative the
# fraction is 1; all other keys are masked, so a set that turns masked scores into NaN shows it.
INPUTS: dict[str, tuple[Distribution, tuple[int | None, int | None]]] = {
    "normal": (Distribution("normal"), _EVERYTHING),
    "outliers": (Distribution("fa3_outlier"), _EVERYTHING),
    "peaked": (Distribution("scaled_normal", {"factor": 4.0}), _EVERYTHING),
    "one key": (Distribution("single_key_rows", {"factor": 1.0}), (0, 0)),
}


@dataclass(frozen=True)
class Effect:
    """Errors of one set on one kind of input.

    `share` of the exponentials is emulated. `o_rmse` is of O as stored, `before_rmse` of O before that rounding;
    `gain` the signed part of O's error (before) that is a factor on O. Ratios are to MUFU alone; None where MUFU's
    error is 0. `nonfinite`: elements of O and LSE that should be finite and are not, left out of the rest.
    """

    name: str
    dtype: str
    inputs: str
    share: float
    o_rmse: float
    o_ratio: float | None
    before_rmse: float
    before_ratio: float | None
    gain: float
    lse_rmse: float
    lse_ratio: float | None
    lse_mean: float
    lse_max: float
    nonfinite: float


def runs(sets: Sequence[CoefficientSet], seeds: int, kinds: Collection[str] = INPUTS.keys()) -> int:
    """Return how often `effects` calls the kernel."""
    return (len(sets) + 1) * seeds * len(DTYPES) * len(kinds)


def effects(
    sets: Sequence[CoefficientSet],
    *,
    seeds: int = 4,
    columns: Columns = "table",
    kinds: Collection[str] = INPUTS.keys(),
    seqlen: int = SEQLEN,
    head_dim: int = HEAD_DIM,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Effect, ...]:
    """Return the effects of MUFU alone and of every set, for each dtype and kind of input.

    Parameters
    ----------
    sets
        Any sets; their names tell them apart.
    seeds
        Inputs 0 to seeds - 1 of each kind are pooled.
    columns
        "table": those that FA4 emulates for the shape; "all" of each tile.
    kinds
        Of `INPUTS`.
    seqlen, head_dim
        Of the one batch and head.
    progress
        Called with the number of kernel runs done since the last call; `runs` in all.
    """
    emulated: dict[str, Any] = {} if columns == "table" else {"emulated_columns": "all"}
    options: dict[str, dict[str, Any]] = {MUFU: {"emulated_columns": "none"}}
    for chosen in sets:
        options[chosen.name] = {
            "coefficients": list(chosen.coefficients), "range_reduction": chosen.range_reduction, **emulated,
        }  # fmt: skip
    found = []
    for dtype, kind in product(DTYPES, kinds):
        with _one_torch_thread():
            problems = list(_problems(kind, dtype, range(seeds), seqlen, head_dim))
            pooled = {}
            for name, given in options.items():
                pooled[name] = _pool([_errors(*problem, given, progress) for problem in problems])
        base = pooled[MUFU]
        for name, errors in pooled.items():
            o, before, lse = (_ratio(errors, base, what) for what in ("o", "before", "lse"))
            found.append(Effect(name, dtype, kind, o_ratio=o, before_ratio=before, lse_ratio=lse, **errors))
    return tuple(found)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Keep torch to one thread: waking others for 64k elements takes half of the time on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _problems(
    kind: str, dtype: str, seeds: Sequence[int], seqlen: int, head_dim: int
) -> Iterator[tuple[Case, Inputs, Truth]]:
    distribution, window = INPUTS[kind]
    shape = Shape(1, seqlen, seqlen, 1, 1, head_dim, head_dim)
    for seed in seeds:
        case = Case(f"explore-{kind}", "forward", KERNEL, distribution, dtype, shape, window_size=window, seed=seed)  # type: ignore[arg-type]
        inputs = cases.draw(case)
        yield case, inputs, references.solve(case, inputs)


def _errors(
    case: Case, inputs: Inputs, truth: Truth, options: Mapping[str, Any], progress: Callable[[int], None]
) -> dict[str, float]:
    """Run the kernel once and measure O twice."""
    exact = msgspec.structs.replace(case, options={**options, "o_dtype": "fp32"})
    output = kernels.run(exact, inputs)
    progress(1)
    before = judgement.measure(exact, output, truth)
    stored = Output(o=output.o.to(inputs.tensors["q"].dtype))  # type: ignore[union-attr]
    after = judgement.measure(case, stored, truth)["o"].values
    o, lse = before["o"].values, before["lse"].values
    emulated, hardware = output.activity["emulated_exp2"], output.activity["hardware_exp2"]
    return {
        "share": emulated / (emulated + hardware),
        "o_rmse": after.get("rmse", math.nan),
        "before_rmse": o.get("rmse", math.nan),
        "gain": o.get("gain_error", math.nan),
        "lse_rmse": lse.get("rmse", math.nan),
        "lse_mean": lse.get("mean_error", math.nan),
        "lse_max": lse.get("max_abs", math.nan),
        "nonfinite": o["nonfinite_mismatches"] + lse["nonfinite_mismatches"],
    }


def _pool(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Pool seeds of equal size."""
    pooled = {}
    for key in each[0]:
        values = [errors[key] for errors in each]
        if key.endswith("rmse"):
            pooled[key] = math.sqrt(sum(value * value for value in values) / len(values))
        elif key == "lse_max":
            pooled[key] = max(values)
        else:
            pooled[key] = sum(values) / (1 if key == "nonfinite" else len(values))
    return pooled


def _ratio(errors: Mapping[str, float], base: Mapping[str, float], what: str) -> float | None:
    return errors[f"{what}_rmse"] / base[f"{what}_rmse"] if base[f"{what}_rmse"] else None
