"""The compiled pass of `statistics` over chunks of inputs.

Contract: `take_piece` fills one row of figures for each chunk of a piece; what the figures mean says `statistics`.
A chunk lies inside one octave and one binade, so its inputs are evenly spaced and 2^x is base * leap[j] * table[i]:
one exp2 a chunk, two multiplications an input. `_one_by_one` needs neither and does what vectors leave over; the tests
hold the two against each other.
Known failure mode: an infinite or NaN result spoils the sums of its chunk; the caller then asks again, `slowly`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.correct import exp2_pair
from fa4verify.arithmetic.fma import fma64
from fa4verify.exp2.evaluate import evaluate_into, evaluate_one, float_at
from fa4verify.exp2.figures import accumulate, outside, place, tally
from fa4verify.exp2.lanes import BEFORE, LANES

CHUNK = 2**15  # inside an octave and a binade: the widest, in [64, 128), are 1/4 long
NEGATIVE = 0x80000000
_BLOCK = 512  # at most one rounding step of a format in it: the closest, of fp16 beyond |x| = 8, are 740 patterns apart
_EDGE = 25  # edges on each side: 1/2, 1, 2 ... 2^23 ulp
_POSITIVE_EDGES = 2.0 ** np.arange(-1, _EDGE - 1)
EDGES = np.concatenate([-_POSITIVE_EDGES[::-1], _POSITIVE_EDGES])
BINS = EDGES.size + 1  # bin k holds the errors from EDGES[k - 1] on, up to but without EDGES[k]
_LIKE64 = np.float64(0.0)


@njit(cache=True)
def _reached(edges, begin, end, value):  # type: ignore[no-untyped-def]
    """Return how many of the growing edges[begin:end] are at most `value`."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low - begin


@njit(cache=True)
def _power(x):  # type: ignore[no-untyped-def]
    """Return 2^x of a float32 in [-128, 128] as float64, within 0.5003 ulp."""
    n, high, low = exp2_pair(x)
    return (high + low) * float_of((n + 1023) << 52, _LIKE64)


@njit(cache=True)
def _spacing_exponent(code):  # type: ignore[no-untyped-def]
    """Return log2 of the spacing of float32 in the binade of these bits."""
    field = (code >> 23) & 255
    return (field if field > 0 else 1) - 150


@njit(cache=True)
def _ulp_scale(x):  # type: ignore[no-untyped-def]
    """Return 1 / (spacing of float32 at 2^x) for x >= -127."""
    octave = np.int64(np.floor(x))
    return float_of((1023 + 23 - (octave if octave > -126 else -126)) << 52, _LIKE64)


@njit(cache=True)
def _one_by_one(  # type: ignore[no-untyped-def]
    y, begin, end, first, stride, falling, at, low, width, starts, sums, extremes, counts, histogram, row
):
    """Take the elements begin ... end - 1 of a block without vectors; sums are summed[0], summed[16]."""
    for i in range(begin, end):
        code = first + i * stride
        x, value = float_at(code), y[BEFORE + i]
        result = np.int64(bits_of(value))
        for f in range(3):
            k = starts[f] + _reached(at, starts[f], starts[f + 1], code)
            if result < low[k] or result > np.int64(low[k]) + np.int64(width[k]):
                counts[f] += 1
        upper, lower = (y[BEFORE + i - 1], value) if falling else (value, y[BEFORE + i - 1])
        if not upper >= lower:
            counts[3] += 1
        if not abs(value) < np.inf:
            counts[4] += 1
            continue
        error = fma64(np.float64(value), _power(-x), -1.0)
        sums[0] += error
        sums[LANES] += error * error
        extremes[0], extremes[1] = min(extremes[0], error), max(extremes[1], error)
        scale = _ulp_scale(x)
        ulps = fma64(-scale, _power(x), np.float64(value) * scale)
        histogram[row, _reached(EDGES, 0, BINS - 1, ulps)] += 1


@njit(cache=True)
def _chunk(  # type: ignore[no-untyped-def]
    first, count, stride, coefficients, nearest, ftz, at, low, width, starts, up, down, leap_up, leap_down,
    y, room, sums, block_extremes, extremes, treads, at_least, counts, histogram, row, slowly,
):  # fmt: skip
    """Add one chunk's figures to sums, extremes, counts and histogram."""
    falling = first >= NEGATIVE
    base, inverse = _power(float_at(first)), _power(-float_at(first))
    grow, shrink, leap, unleap = (down, up, leap_down, leap_up) if falling else (up, down, leap_up, leap_down)
    index = np.empty(3, np.int64)
    for f in range(3):
        index[f] = starts[f] + _reached(at, starts[f], starts[f + 1], first)
    for j in range((count + _BLOCK - 1) // _BLOCK):
        begin = first + j * _BLOCK * stride
        size = min(_BLOCK, count - j * _BLOCK)
        y[BEFORE - 1] = y[BEFORE + _BLOCK - 1]
        evaluate_into(y, BEFORE, begin, stride, size, coefficients, nearest, ftz)
        vectors = 0 if slowly else size // LANES
        if vectors:
            accumulate(y, vectors, shrink, inverse * unleap[j], sums, block_extremes)
            split = False
            for f in range(3):
                k = index[f]
                while at[k] <= begin:
                    k += 1
                index[f] = k
                treads[f, 0], treads[f, 1] = low[k], width[k]
                position = min(_BLOCK, (at[k] - begin + stride - 1) // stride)
                if position < vectors * LANES:
                    split = True
                    treads[f, 2], treads[f, 3] = low[k + 1], width[k + 1]
                treads[f, 4] = position
            outside(y, vectors, treads, split, falling, counts)
            # Between which edges can the block's errors lie? Usually one bin, or two.
            scale = _ulp_scale(float_at(begin + (size - 1) * stride) if falling else float_at(begin))
            power = base * leap[j] * scale
            other = power * grow[vectors * LANES - 1]
            smallest = min(block_extremes[0] * power, block_extremes[0] * other)
            largest = max(block_extremes[1] * power, block_extremes[1] * other)
            bottom = _reached(EDGES, 0, BINS - 1, smallest - 1e-9 * abs(smallest) - 1e-9)
            top = _reached(EDGES, 0, BINS - 1, largest + 1e-9 * abs(largest) + 1e-9)
            rest = vectors * LANES
            if bottom < top:
                place(y, vectors, grow, power, scale, room, EDGES, bottom, top, at_least)
                for k in range(bottom, top):
                    histogram[row, k] += rest - at_least[k]
                    rest = at_least[k]
            histogram[row, top] += rest
            extremes[0], extremes[1] = min(extremes[0], block_extremes[0]), max(extremes[1], block_extremes[1])
        if vectors * LANES < size:
            _one_by_one(
                y, vectors * LANES, size, begin, stride, falling, at, low, width, starts, sums, extremes, counts,
                histogram, row,
            )  # fmt: skip


@njit(cache=True, nogil=True)
def take_piece(  # type: ignore[no-untyped-def]
    first, count, stride, coefficients, nearest, ftz, slowly, at, low, width, starts,
    total, square, lowest, highest, mismatches, steps_down, nonfinite, histogram,
):  # fmt: skip
    """Fill the rows of one piece's chunks; `slowly`: without vectors, for chunks with infinite or NaN results."""
    y, room = np.zeros(BEFORE + _BLOCK, np.float32), np.empty(_BLOCK)
    up, down = np.empty(_BLOCK), np.empty(_BLOCK)
    leap_up, leap_down = np.empty(CHUNK // _BLOCK), np.empty(CHUNK // _BLOCK)
    sums, block_extremes, extremes = np.zeros(2 * LANES), np.zeros(2), np.zeros(2)
    treads, at_least = np.zeros((3, 5), np.uint32), np.zeros(BINS, np.int64)
    counts = np.zeros(5, np.int64)
    gap = np.int64(1000)
    before = first - stride if first - stride >= (NEGATIVE if first >= NEGATIVE else 0) else first
    last = evaluate_one(float_at(before), coefficients, nearest, ftz)
    for c in range(total.size):
        begin = first + c * CHUNK * stride
        size = min(CHUNK, count - c * CHUNK)
        if _spacing_exponent(begin) != gap:
            gap = _spacing_exponent(begin)
            step = np.float32(2.0**gap * stride)
            for i in range(_BLOCK):
                up[i], down[i] = _power(np.float32(i) * step), _power(-np.float32(i) * step)
            for j in range(CHUNK // _BLOCK):
                leap = np.float32(j * _BLOCK) * step
                if leap < 1.0:
                    leap_up[j], leap_down[j] = _power(leap), _power(-leap)
        for i in range(2 * LANES):
            sums[i] = 0.0
        for i in range(5):
            counts[i] = 0
        for i in range(BINS):
            histogram[c, i] = 0
        extremes[0], extremes[1] = np.inf, -np.inf
        y[BEFORE + _BLOCK - 1] = last
        _chunk(
            begin, size, stride, coefficients, nearest, ftz, at, low, width, starts, up, down, leap_up, leap_down,
            y, room, sums, block_extremes, extremes, treads, at_least, counts, histogram, c, slowly,
        )  # fmt: skip
        last = y[BEFORE + (size - 1) % _BLOCK]
        total[c], square[c] = 0.0, 0.0
        for i in range(LANES):
            total[c] += sums[i]
            square[c] += sums[LANES + i]
        lowest[c], highest[c] = extremes[0], extremes[1]
        for f in range(3):
            mismatches[c, f] = counts[f]
        steps_down[c], nonfinite[c] = counts[3], counts[4]


@njit(cache=True, nogil=True)
def tally_range(first, count, coefficients, nearest, ftz, limits, counts):  # type: ignore[no-untyped-def]
    """Add to counts[k] how many of the results for consecutive bit patterns have bits above limits[k], unsigned."""
    block = 4096
    y = np.empty(BEFORE + block, np.float32)
    done = 0
    while done < count:
        size = min(block, count - done)
        evaluate_into(y, BEFORE, first + done, 1, size, coefficients, nearest, ftz)
        tally(y, size // LANES, limits, counts)
        for i in range(size // LANES * LANES, size):
            code = np.int64(bits_of(y[BEFORE + i]))
            for k in range(4):
                counts[k] += code > np.int64(limits[k])
        done += size
