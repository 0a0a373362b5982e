"""The special-function unit's tables, read off a device's answers.

Contract: the structure is the H200's (docs/arithmetic.md): a row of three integers a segment, the truncated square, the
rounding constants. Each answer bounds its row's integer sum to the bits that were cut, so that a weighted least-squares
fit over the 2^16 or 2^17 inputs of a segment lands within a hundredth of the integers, which are then tried on every
input of the segment, neighbours too where one does not fit. `derived` returns the tables and how many answers no row
explains: above zero, the unit has another structure and the tables must not be used.
Held to the floor's own answers, it gives back the shipped tables: tests/admission/test_derive.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from fa4verify.admission.exhaust import Answers

    Integers = NDArray[np.int64]

EX2_ROUNDING, RCP_ROUNDING, LG2_ROUNDING = 0x77E2, 0x47E7, 0x3345
ONE = 127 << 23  # the bits of 1.0; the octave from it has every fraction
TANH_FIRST = 119  # exponent field of 2^-8
NEAR = (0, -1, 1, -2, 2)


class Segment(NamedTuple):
    """The answers of one segment: its row r satisfies low <= basis @ r + offset < high for every input."""

    basis: Integers
    offset: int
    low: Integers
    high: Integers


def derived(answers: Answers, segment_bits: list[int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the tables (without provenance), and for each function how many answers no row explains.

    Parameters
    ----------
    answers
        Asks the device, as in `exhaust`.
    segment_bits
        For each octave of tanh, how many fraction bits choose the segment.
    """
    of: dict[str, Callable[[Answers], Iterator[Segment]]] = {
        "ex2": _ex2,
        "rcp": _rcp,
        "lg2": _lg2,
        "tanh": lambda given: _tanh(given, segment_bits),
    }
    tables: dict[str, Any] = {"tanh_segment_bits": segment_bits}
    unexplained = {}
    for name, segments in of.items():
        fitted = [_row(segment) for segment in segments(answers)]
        tables[name] = [row for row, _ in fitted]
        unexplained[name] = sum(count for _, count in fitted)
    return tables, unexplained


def _row(segment: Segment) -> tuple[list[int], int]:
    """Return the row, and how many answers it does not explain."""
    middle = (segment.low + segment.high) / 2.0 - segment.offset
    weight = 1.0 / (segment.high - segment.low)
    scale = np.abs(segment.basis).max(axis=0).astype(np.float64)
    scale[scale == 0] = 1.0
    solution, *_ = np.linalg.lstsq(segment.basis / scale * weight[:, None], middle * weight, rcond=None)
    fitted = np.rint(solution / scale).astype(np.int64)
    best, least = fitted, _unexplained(segment, fitted)
    for step in itertools.product(NEAR, repeat=3) if least else ():
        tried = fitted + np.array(step, np.int64)
        if (count := _unexplained(segment, tried)) < least:
            best, least = tried, count
    return [int(value) for value in best], least


def _unexplained(segment: Segment, row: Integers) -> int:
    total = segment.basis @ row + segment.offset
    return int(((total < segment.low) | (total >= segment.high)).sum())


def _ex2(answers: Answers) -> Iterator[Segment]:
    significand = _significands(answers("ex2", ONE, 1 << 23))
    x = np.arange(1 << 17, dtype=np.int64)
    basis = np.stack([np.full_like(x, 1 << 13), x, squarer(x)], axis=1)
    for part in significand.reshape(64, -1):
        yield Segment(basis, EX2_ROUNDING, part << 15, (part + 1) << 15)


def _rcp(answers: Answers) -> Iterator[Segment]:
    y = answers("rcp", ONE, 1 << 23).view(np.float32).astype(np.float64)
    significand = np.rint(y * 2.0**24).astype(np.int64)  # 1/1 is 2^24, all others are below
    x = np.arange(1 << 16, dtype=np.int64)
    basis = np.stack([np.full_like(x, 1 << 13), x, squarer(2 * x)], axis=1)
    for part in significand.reshape(128, -1):
        yield Segment(basis, RCP_ROUNDING, part << 15, (part + 1) << 15)


def _lg2(answers: Answers) -> Iterator[Segment]:
    low, high = _cut(answers("lg2", ONE, 1 << 23), 36)
    low[0], high[0] = -(1 << 20), 1 << 20  # log2 1 is 0 by a rule of its own
    x = np.arange(1 << 17, dtype=np.int64)
    basis = np.stack([np.full_like(x, 1 << 12), x, 2 * squarer(x)], axis=1)
    for least, most in zip(low.reshape(64, -1), high.reshape(64, -1), strict=True):
        yield Segment(basis, LG2_ROUNDING, least << 2, most << 2)


def _tanh(answers: Answers, segment_bits: list[int]) -> Iterator[Segment]:
    x = np.arange(1 << 17, dtype=np.int64)
    basis = np.stack([np.full_like(x, 1 << 15), x, 2 * squarer(x)], axis=1)
    for octave, bits in enumerate(segment_bits):
        low, high = _cut(answers("tanh", (TANH_FIRST + octave) << 23, 1 << 23), 39)
        step = 1 << (6 - bits)  # fraction bits below a segment's 17 are ignored
        for least, most in zip(low.reshape(1 << bits, -1), high.reshape(1 << bits, -1), strict=True):
            yield Segment(basis, 0, least[::step], most[::step])


def squarer(x: Integers) -> Integers:
    """Return the unit's truncated square: the sum over the set bits i of x of x >> (18 - i), halved."""
    total = np.zeros_like(x)
    for i in range(17):
        total += ((x >> i) & 1) * (x >> (18 - i))
    return total >> 1


def _significands(bits: NDArray[np.uint32]) -> Integers:
    return (bits.astype(np.int64) & 0x7FFFFF) | 0x800000


def _cut(bits: NDArray[np.uint32], fraction_bits: int) -> tuple[Integers, Integers]:
    """Return between which fixed-point numbers a positive result lay before it was cut to 24 bits."""
    exponent = (bits.astype(np.int64) >> 23) - 127
    shift = exponent - 23 + fraction_bits
    significand = _significands(bits)
    wide = np.maximum(shift, 0)
    low = np.where(shift >= 0, significand << wide, significand >> np.maximum(-shift, 0))
    return low, low + (np.int64(1) << wide)
