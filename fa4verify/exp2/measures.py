"""Weights that turn the figures of chunks into one mean: a mean says nothing until its measure is named.

Contract: `summarise` gives one Summary of the chunks between two whole numbers; mean, RMSE and shares are weighted,
the maximum is over every input. Measures:
- "x": x uniform. Each float32 stands for the gap to the next one above. (Counting floats instead would give 76 % of
  [-126, 0] to x within 2^-25 of 0.)
- "f": the reduced argument uniform; x = -k / 2^24 holds each fraction once (`statistics.fractions`).
- "attention": log2(e) (t - max t) for 1024 scores t that are independent and standard normal, as Q and K of standard
  normal elements give them; of the keys other than the largest.
Known limit: inside a chunk the density of "attention" is taken as constant; a chunk is 2^-8 of its |x| or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.exp2.statistics import FORMATS, NEGATIVE

if TYPE_CHECKING:
    import numpy.typing as npt

    from fa4verify.exp2.statistics import Figures

KEYS = 1024
_NODES = 96  # of the quadrature over the largest score, which is in [1, 8] but for 1e-12: good to 1e-9


@dataclass(frozen=True)
class Summary:
    """Errors over one range under one measure.

    `worst` is the largest relative error in size, signed, and `worst_bits` the bits of the x where it occurs;
    `mismatches` are shares of results whose rounding to bf16, fp16, e4m3 is not that of 2^x.
    """

    name: str
    measure: str
    inputs: int
    worst: float
    worst_bits: int
    rmse: float
    mean: float
    mismatches: dict[str, float]
    nonfinite: int


def edges(figures: Figures) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the lower and upper end of the x that each chunk stands for."""
    last = figures.first + (figures.count - 1) * figures.stride
    negative = figures.first >= NEGATIVE
    above = figures.first - figures.stride
    low = np.where(negative, _x(last), _x(figures.first))
    high = np.where(negative, _x(np.maximum(above, NEGATIVE * negative)), _x(last + figures.stride))
    return low, high


def within(figures: Figures, lowest: float, highest: float) -> npt.NDArray[np.bool_]:
    """Return which chunks lie in [lowest, highest)."""
    low, high = edges(figures)
    return (low >= lowest) & (high <= highest)


def uniform(figures: Figures) -> npt.NDArray[np.float64]:
    """Return the length of x that each chunk stands for."""
    low, high = edges(figures)
    return high - low


def attention(figures: Figures) -> npt.NDArray[np.float64]:
    """Return the probability of each chunk under the measure "attention"; 0 for positive x."""
    low, high = edges(figures)
    negative = figures.first >= NEGATIVE
    weights = np.zeros(low.size)
    weights[negative] = _below(high[negative]) - _below(low[negative])
    return np.maximum(weights, 0.0)  # a difference of nearly equal numbers


def _below(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probability that a key's x is below each x <= 0.

    Given the largest score m, the others are normal and below m.
    """
    from scipy.special import ndtr

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    largest = 4.5 + 3.5 * nodes
    density = KEYS * np.exp(-largest * largest / 2) / math.sqrt(2 * math.pi) * ndtr(largest) ** (KEYS - 1)
    total = np.zeros(x.size)
    for m, share in zip(largest, 3.5 * weights * density / ndtr(largest), strict=True):
        total += share * ndtr(m + x * math.log(2))
    return total


def summarise(
    name: str, measure: str, figures: Figures, chosen: npt.NDArray[np.bool_], mass: npt.NDArray[np.float64],
    worst_bits: int, worst: float,
) -> Summary:  # fmt: skip
    """Return the summary of the chosen chunks, each with its mass spread evenly over its inputs."""
    kept = figures.count - figures.nonfinite
    share = np.where(chosen & (kept > 0), mass / figures.count, 0.0)
    total = float(np.sum(share * kept))
    everything = float(np.sum(np.where(chosen, mass, 0.0)))
    mismatched = (np.where(chosen, mass / figures.count, 0.0) @ figures.mismatches) / everything
    return Summary(
        name=name,
        measure=measure,
        inputs=int(figures.count[chosen].sum()),
        worst=worst,
        worst_bits=worst_bits,
        rmse=math.sqrt(float(np.sum(share * figures.square)) / total) if total else math.nan,
        mean=float(np.sum(share * figures.total)) / total if total else math.nan,
        mismatches={fmt.name: float(value) for fmt, value in zip(FORMATS, mismatched, strict=True)},
        nonfinite=int(figures.nonfinite[chosen].sum()),
    )


def _x(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)
