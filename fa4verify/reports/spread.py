"""How far a figure may move between two runs before it has drifted.

Contract: `tolerance` is what the yardstick alone can move, `seed_spread` what other inputs of the same kind move.
Inputs are the same bits everywhere and so are the emulated kernels, so with one set of libraries on one kind of
processor every figure is reproduced to the bit: tolerance 0, which two gate runs of different commits confirm (no
difference in 415 cases). Elsewhere the float64 truth is summed in another order, and the tolerance is derived from its
certified radius; a figure that no such bound exists for is not compared, and is counted.

The derivation, R being twice the sum of both radii (they are certified on sampled rows; twice, for the others):

- 2^-50 of the truth's RMS, eight of its own last places, is added: rows that were not sampled may be larger (LSE of an
  outlier; between a CPU's and an H200's truth 1 of 526 cases needed it);
- RMSE and maximum are norms and the mean is below one, so a truth that moves by R moves them by R at most; so does the
  distance to the nearest number of a format, which is what floor_rmse and floor_max_abs are made of;
- relative_rmse and gain_error are quotients by truth_rms: with both numerator and denominator off by R,
  (1 + relative_rmse) R / truth_rms to first order, and four times that covers gain_error's product;
- relative errors of exp2: each truth is within one ulp, 2^-52 of itself, hence 2^-51 apart;
- the sums themselves, of up to 2^24 terms in any order: 2^-29 of the mean magnitude, which the RMSE bounds.

Errors in ulp have no such bound: a truth of exactly 2^k, off by its last bit, halves the ulp. Nor have single rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.vocabulary import BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fa4verify.vocabulary import Metrics

# What decides in which order float64 sums are taken, and which exp2 a library has. The number of cores does not.
DECIDES = ("cpu", "cpu features", "libc", "numpy", "torch", "numba", "scipy", "blas")
# Made of the kernel's bits alone, or counted against integers.
COUNTED = frozenset(
    {"elements", "runs", "distinct", "distinct_shuffled", "max_difference", "nonfinite_mismatches", BITS}
    | {"keyless_rows_not_zero", "declared_mismatches", "special_mismatches"}
)
IN_UNITS = frozenset({"rmse", "truth_rms", "max_abs", "mean_error", "floor_rmse", "floor_max_abs"})
QUOTIENTS = frozenset({"relative_rmse", "gain_error"})
RELATIVE = frozenset({"max_relative", "mean_relative", "rmse_relative"})
_SUMS = 2.0**-29
_LAST_PLACES = 2.0**-50


def same_sums(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two fingerprints are of one kind of processor with one set of libraries."""
    return all(old.get(name) == new.get(name) for name in DECIDES)


def tolerance(name: str, old: Metrics, new: Metrics) -> float | None:
    """Return how far a metric may move because the truth was computed elsewhere; None where nothing bounds it."""
    if name in COUNTED:
        return 0.0
    before, after = old.values[name], new.values[name]
    sums = _SUMS * max(abs(before), abs(after), old.values.get("rmse", 0.0))
    if name in RELATIVE:
        return 2.0**-51 + sums
    radii = [metrics.profile.radius if metrics.profile else None for metrics in (old, new)]
    if radii[0] is None or radii[1] is None:
        return None
    size = old.values.get("truth_rms", 0.0)
    radius = 2.0 * (radii[0] + radii[1]) + _LAST_PLACES * size
    if name in IN_UNITS:
        return radius + sums
    if name in QUOTIENTS and size:
        relative = old.values.get("relative_rmse", 0.0)
        return (4.0 * radius / size + _SUMS) * (1.0 + relative)
    return None


def seed_spread(old: Sequence[float], new: Sequence[float]) -> float:
    """Return how far a figure reaches over the seeds of a case: the smaller of the two runs' ranges, 0 for one seed.

    The smaller, so that one wild seed of the new run cannot excuse itself; a run with a single seed has no say.
    """
    ranges = [max(values) - min(values) for values in (old, new) if len(values) > 1]
    return min(ranges, default=0.0)
