"""Running sums from which the metrics of one tensor are made, chunk by chunk.

Contract: memory does not depend on the tensor's size; the result does not depend on the order of elements inside a
chunk beyond float64 rounding. Fails first where a mean is tiny beside the errors it averages: the squares are summed
about the first chunk's mean for that reason. Quantiles come from a histogram over the leading 20 bits of the float32
value, so they are rounded to 12 significant bits (2^-11 relative; 0.5, 1, 2 ulp and all small integers are exact).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DROPPED_BITS = 12
_BINS = 1 << (31 - _DROPPED_BITS)  # the sign bit is always 0
_FEW = 1 << 17
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass
class Largest:
    """The largest value seen and its flat position; the first one wins a tie."""

    value: float = -1.0
    position: int = -1

    def add(self, values: NDArray[np.float64], start: int) -> None:
        """Take in values that begin at flat position `start`."""
        if values.size:
            best = int(np.argmax(values))
            if float(values.flat[best]) > self.value:
                self.value, self.position = float(values.flat[best]), start + best


@dataclass
class Quantiles:
    """Quantiles of values >= 0: of their codes while these are few, of a histogram over the codes from then on.

    Both give the same answer; the histogram alone would cost 10 ms a tensor, however small.
    """

    codes: list[NDArray[np.int32]] = field(default_factory=list)
    few: int = 0
    counts: NDArray[np.int64] | None = None

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in these values."""
        short = np.minimum(values, _FLOAT32_MAX).astype(np.float32)
        self.codes.append(short.view(np.int32) >> _DROPPED_BITS)
        self.few += values.size
        if self.few > _FEW:
            self._fold()

    def _fold(self) -> None:
        counts = np.bincount(np.concatenate(self.codes), minlength=_BINS)
        self.counts = counts if self.counts is None else self.counts + counts
        self.codes, self.few = [], 0

    def at(self, *shares: float) -> list[float]:
        """Return for each share the smallest value that at least this share of the values does not exceed."""
        if self.counts is None:
            codes = np.sort(np.concatenate(self.codes))
            ranks = [max(1, math.ceil(share * codes.size)) for share in shares]
            found = [int(codes[rank - 1]) for rank in ranks]
        else:
            if self.codes:
                self._fold()
            cumulative = np.cumsum(self.counts)
            ranks = [max(1, math.ceil(share * int(cumulative[-1]))) for share in shares]
            found = [int(np.searchsorted(cumulative, rank)) for rank in ranks]
        return [float(np.array(code << _DROPPED_BITS, dtype=np.int32).view(np.float32)) for code in found]


@dataclass
class UnitMean:
    """Mean over elements, and its standard error with units (rows or elements) as what is independent.

    The mean is sum(s) / sum(c) with s the sum of a unit and c its count; the standard error is that of this ratio,
    sqrt(n / (n - 1) * sum((s - mean * c)^2)) / sum(c), the usual one where every unit has the same count.
    """

    shift: float | None = None
    units: int = 0
    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    cross: float = 0.0
    count_squares: float = 0.0

    def add(self, sums: NDArray[np.float64], counts: NDArray[np.float64]) -> None:
        """Take in units with their sums and counts; units of count 0 are left out."""
        there = counts > 0
        sums, counts = sums[there], counts[there]
        if not sums.size:
            return
        if self.shift is None:
            self.shift = float(sums.sum() / counts.sum())
        rest = sums - self.shift * counts
        self.units += sums.size
        self.count += float(counts.sum())
        self.total += float(rest.sum())
        self.squares += float((rest * rest).sum())
        self.cross += float((rest * counts).sum())
        self.count_squares += float((counts * counts).sum())

    def mean(self) -> float:
        """Return the mean over all elements."""
        return (self.shift or 0.0) + self.total / self.count

    def standard_error(self) -> float | None:
        """Return the standard error of the mean, None for fewer than two units."""
        if self.units < 2:
            return None
        mean = self.total / self.count
        spread = self.squares - 2 * mean * self.cross + mean * mean * self.count_squares
        return math.sqrt(max(0.0, spread) * self.units / (self.units - 1)) / self.count
