"""What a search can afford for each of a hundred thousand candidates: figures on a subset of the fractions.

Contract: `Sample.measure` gives the figures of `merit` on 2^15 fractions for root mean square and mean, and on a set
of hard ones for the largest error, which `add_hard` extends by those where candidates proved worst: a lower bound that
the search closes. The formats' shares are exact, since only fractions next to a midpoint between two numbers of the
format decide them; `aim` chooses how far next, after the error that is expected at each midpoint.
Known failure mode: a share whose errors leave those windows comes back as infinity, never as a wrong count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from fa4verify.arithmetic.formats import round_to
from fa4verify.exp2.merit import COUNT, LN2, UNIT, first_fraction, fractions, hard_fractions, horner, moments
from fa4verify.exp2.targets import FORMATS, OBJECTIVES, midpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from fa4verify.exp2.remez import Shape

_CHUNK = 512
_CHEAPEST_FIRST = (5, 0, 3, 1, 2, 4)  # e4m3 looks at 200 fractions, fp16 at 24,000 and more


@njit(cache=True)
def _share(f, bound, above, edge, coefficients, limit, p):  # type: ignore[no-untyped-def]
    """Count the fractions whose result lies on the wrong side of its midpoint; infinity where that leaves a window."""
    count = 0
    size = p.size
    for start in range(0, f.size, size):
        n = min(size, f.size - start)
        horner(f[start : start + n], coefficients, p[:n])
        left = 0
        for i in range(n):
            wrong = (p[i] > bound[start + i]) != above[start + i]
            count += wrong
            left += wrong & edge[start + i]
        if left > 0 or count > limit:
            return np.inf
    return float(count)


@njit(cache=True)
def _largest(hard, c, limit, p, e):  # type: ignore[no-untyped-def]
    """Return the largest error on a set of fractions, or one above the limit."""
    f, inverse, allowance = hard
    worst = 0.0
    for start in range(0, f.size, _CHUNK):
        n = min(_CHUNK, f.size - start)
        horner(f[start : start + n], c, p[:n])
        for j in range(n):
            e[j] = p[j] * inverse[start + j] - 1.0
        worst = max(worst, moments(e[:n], allowance[start : start + n])[0])
        if worst > limit:
            break
    return worst


@njit(cache=True)
def _mean_and_rms(sample, c, limit, p, e):  # type: ignore[no-untyped-def]
    """Return |mean| and root mean square of the error, or a root mean square above the limit."""
    f, inverse, allowance = sample
    total, squares, most = 0.0, 0.0, limit * limit * f.size
    for start in range(0, f.size, _CHUNK):
        n = min(_CHUNK, f.size - start)
        horner(f[start : start + n], c, p[:n])
        for j in range(n):
            e[j] = p[j] * inverse[start + j] - 1.0
        _, s, s2 = moments(e[:n], allowance[start : start + n])
        total += s
        squares += s2
        if squares > most:
            return np.inf, np.inf
    return abs(total) / f.size, np.sqrt(squares / f.size)


@njit(cache=True, nogil=True)
def _measure(candidates, wanted, limits, hard, sample, windows, out):  # type: ignore[no-untyped-def]
    """Fill out[i] with candidate i's figures in the order of OBJECTIVES, infinity in all once one exceeds its limit."""
    p = np.empty(_CHUNK, np.float32)
    e = np.empty(_CHUNK)
    for i in range(candidates.shape[0]):
        c = candidates[i]
        out[i] = np.inf
        worst, mean, rms = 0.0, 0.0, 0.0
        counts = np.zeros(3)
        good = True
        for what in _CHEAPEST_FIRST:
            if not wanted[what]:
                continue
            if what == 0:
                worst = _largest(hard, c, limits[0], p, e)
                good = worst <= limits[0]
            elif what <= 2:
                mean, rms = _mean_and_rms(sample, c, limits[1], p, e)
                good = rms <= limits[1] and mean <= limits[2]
            else:
                f, bound, above, edge = windows[what - 3]
                counts[what - 3] = _share(f, bound, above, edge, c, limits[what] * COUNT + 0.5, p) / COUNT
                good = counts[what - 3] < np.inf
            if not good:
                break
        if not good:
            continue
        out[i, 0], out[i, 1], out[i, 2] = worst, rms, mean
        out[i, 3:] = counts


class Sample:
    """A subset of the fractions for a search; grows where candidates prove to be worst."""

    def __init__(self, shape: Shape, *, over_x: bool = True, size: int = 2**15) -> None:
        self.floor = shape.range_reduction == "floor"
        self.over_x = over_x
        self._shared = self.floor and over_x
        self.interval = shape.interval
        first = first_fraction(self.floor)
        spacing = 2**24 // size
        # One fraction at random in each stretch, so that no rounding pattern of period 2^k is met or missed throughout.
        inner = first + np.arange(size) * spacing + np.random.default_rng(5).integers(0, spacing, size)
        self._sample = fractions(inner, self._shared)
        self._hard = np.unique(np.concatenate([inner[:: size // 2048], [first, first + 2**24]]))
        self._hard_set = fractions(self._hard, self._shared)
        empty = (np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.bool_), np.empty(0, np.bool_))
        self._windows: list[tuple[Any, ...]] = [empty, empty, empty]

    def add_hard(self, coefficients: npt.NDArray[np.float32], count: int) -> None:
        """Put the fractions where a candidate is worst first among those of the largest error."""
        worst = hard_fractions(coefficients, count, floor=self.floor, over_x=self.over_x)
        new = np.setdiff1d(worst, self._hard)
        self._hard = np.concatenate([new, self._hard])
        self._hard_set = fractions(self._hard, self._shared)

    def aim(self, coefficients: npt.NDArray[np.float64], slack: float, names: tuple[str, ...]) -> None:
        """Set the windows of formats around midpoints for errors near those of real coefficients, +- slack."""
        powers = np.arange(coefficients.size)
        for j, name in enumerate(FORMATS):
            if name not in names:
                continue
            left, right = self.interval
            middle = midpoints(FORMATS[name], (left - 1e-5, right + 1e-5))
            places = np.log2(middle)
            error = np.abs((places[:, None] ** powers) @ coefficients / middle - 1.0)
            reach = np.ceil((1.5 * error + slack) / (LN2 * UNIT)).astype(np.int64) + 4
            columns: list[list[Any]] = [[], [], [], []]
            for m, place, width in zip(middle, places, reach, strict=True):
                crossing = int(np.floor(place / UNIT))  # the last k below the midpoint
                k = np.arange(crossing - width, crossing + width + 1)
                inside = (k >= first_fraction(self.floor)) & (k <= first_fraction(self.floor) + 2**24)
                edge = np.zeros(k.size, np.bool_)
                edge[[0, -1]] = True
                k, edge = k[inside], edge[inside]
                bound = np.full(k.size, self._bound(m, name))
                for column, values in zip(
                    columns, ((k * UNIT).astype(np.float32), bound, k > crossing, edge), strict=True
                ):
                    column.append(values)
            self._windows[j] = tuple(np.concatenate(column) for column in columns)

    @staticmethod
    def _bound(middle: float, name: str) -> np.float32:
        """Return the largest float32 that rounds down at a midpoint: itself, where the even neighbour is below."""
        m = np.float32(middle)
        down = float(round_to(np.array([m]), FORMATS[name])[0]) < middle
        return m if down else np.nextafter(m, np.float32(0.0))

    def measure(
        self,
        candidates: npt.NDArray[np.float32],
        names: tuple[str, ...],
        limits: Mapping[str, float] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return figures (candidates, 6) in the order of OBJECTIVES, `bias` by size; what is not named is not computed.

        A row is infinite where a figure exceeds its limit or a share leaves its windows.
        """
        wanted = np.array([name in names for name in OBJECTIVES])
        bounds = np.array([(limits or {}).get(name, np.inf) for name in OBJECTIVES])
        out = np.empty((len(candidates), len(OBJECTIVES)))
        arrays = np.ascontiguousarray(candidates, np.float32)
        _measure(arrays, wanted, bounds, self._hard_set, self._sample, tuple(self._windows), out)
        return out
