"""Error figures of a coefficient set over ranges of float32 bit patterns: every input, none sampled.

Contract: `collect` takes pieces (first bits, count, stride) with -127 <= x < 128 and returns the figures of each chunk
of at most 2^15 inputs, so that any measure on x is a weighted sum of them afterwards. Errors are against 2^x itself:
- relative: y / 2^x - 1, off by less than 5.1 * 2^-53 = 5.7e-16: the reference 2^-x is the product of three float64
  from `correct.exp2_pair`, each rounded, as are the two multiplications (4.56e-16 occurs);
- ulp: (y - 2^x) / spacing of float32 at 2^x (below 2^-126 that of the subnormals), off by less than 2^-26;
- mismatches: y rounded to bf16, fp16, e4m3 is not 2^x rounded once (`steps`), exact;
- steps down: y at a float32 is below y at the float32 under it, or one of them is NaN.
Results that are infinite or NaN are counted apart and left out of the sums, extremes and ulp histogram.
The chunks' order, and with it every bit of a sum, does not depend on the number of threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fa4verify.exp2.lanes import LANES
from fa4verify.exp2.passes import BINS, CHUNK, EDGES, NEGATIVE, take_piece
from fa4verify.exp2.steps import FORMATS, staircase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from fa4verify.exp2.sets import CoefficientSet

__all__ = [
    "BINS",
    "CHUNK",
    "EDGES",
    "FORMATS",
    "NEGATIVE",
    "Figures",
    "Piece",
    "collect",
    "everything",
    "fractions",
    "processors",
]

_PIECE = 2**25  # inputs a thread takes at once: 30 ms


@dataclass(frozen=True)
class Piece:
    """Inputs with the bits first, first + stride, ...; from a binade's start (negative x: one stride after it)."""

    first: int
    count: int
    stride: int = 1


@dataclass(frozen=True)
class Figures:
    """Figures of each chunk; all arrays have one entry or row a chunk.

    `first` (bits), `count`, `stride`; `total` and `square`: sums of relative errors and of their squares; `low` and
    `high`: the extremes; `mismatches` (chunks, 3) in the order of `steps.FORMATS`; `down`: steps down;
    `nonfinite`: results left out; `histogram` (chunks, BINS).
    """

    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    stride: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]
    square: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    mismatches: npt.NDArray[np.int64]
    down: npt.NDArray[np.int64]
    nonfinite: npt.NDArray[np.int64]
    histogram: npt.NDArray[np.int32]

    @property
    def results(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns but those that say which inputs a chunk holds."""
        return (
            self.total, self.square, self.low, self.high, self.mismatches, self.down, self.nonfinite, self.histogram
        )  # fmt: skip


def collect(
    pieces: Iterable[Piece],
    chosen: CoefficientSet,
    *,
    ftz: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Figures:
    """Return the figures of every chunk of the pieces.

    Parameters
    ----------
    pieces
        Inputs with -127 <= x < 128, such as `everything()` and `fractions()`; ValueError for others.
    chosen
        The set, with its range reduction.
    ftz
        FA4's scalar form instead of the packed one.
    threads
        By default one for each processor that the process may use.
    progress
        Called with the number of inputs done since the last call, from any thread.
    """
    parts = [part for piece in pieces for part in _cut(_evenly_spaced(piece))]
    chunks = [-(-part.count // CHUNK) for part in parts]
    ends = [int(end) for end in np.cumsum([0, *chunks])]
    made = _empty(parts, chunks)
    nearest = chosen.range_reduction == "nearest"
    treads = {negative: _treads(negative) for negative in (False, True)}

    def fill(part: Piece, rows: slice, slowly: bool) -> None:
        take_piece(
            part.first, part.count, part.stride, chosen.float32, nearest, ftz, slowly,
            *treads[part.first >= NEGATIVE], *(column[rows] for column in made.results),
        )  # fmt: skip

    def take(k: int) -> None:
        fill(parts[k], slice(ends[k], ends[k + 1]), False)
        for c in range(ends[k], ends[k + 1]):
            if not np.isfinite(made.square[c]):
                fill(Piece(int(made.first[c]), int(made.count[c]), int(made.stride[c])), slice(c, c + 1), True)
        progress(parts[k].count)

    with ThreadPoolExecutor(threads or processors()) as pool:
        for job in [pool.submit(take, k) for k in range(len(parts))]:
            job.result()
    return made


def processors() -> int:
    """Return how many processors the process may use; a container's share is smaller than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cut(piece: Piece) -> list[Piece]:
    """Cut a piece where its chunks end anyway."""
    return [
        Piece(piece.first + start * piece.stride, min(_PIECE, piece.count - start), piece.stride)
        for start in range(0, piece.count, _PIECE)
    ]


def _evenly_spaced(part: Piece) -> Piece:
    """Return the piece; ValueError unless each chunk lies in one binade and one octave, and in [-127, 128)."""
    negative = part.first >= NEGATIVE
    end = NEGATIVE + _code(127) if negative else _code(128) - 1
    bad = part.stride < 1 or part.count < 1 or part.first == NEGATIVE
    bad = bad or part.first + (part.count - 1) * part.stride > end
    begin = np.arange(0, 0 if bad else part.count, CHUNK)
    size = np.minimum(CHUNK, part.count - begin)
    first = part.first + begin * part.stride
    last = first + (size - 1) * part.stride
    if negative:  # a binade's and an octave's last negative number has the next one's bits
        first, last = first - part.stride, last - part.stride
    lower, upper = (codes.astype(np.uint32).view(np.float32) for codes in (first, last))
    even = (first >> 23 == last >> 23) & (np.trunc(lower) == np.trunc(upper))
    if bad or not np.all(even | (size < LANES)):
        raise ValueError(f"{part}: no chunks of evenly spaced inputs in one octave of [-127, 128)")
    return part


def _empty(parts: Sequence[Piece], chunks: Sequence[int]) -> Figures:
    first = [part.first + c * CHUNK * part.stride for part, n in zip(parts, chunks, strict=True) for c in range(n)]
    count = [min(CHUNK, part.count - c * CHUNK) for part, n in zip(parts, chunks, strict=True) for c in range(n)]
    n = len(first)
    return Figures(
        np.array(first, np.int64), np.array(count, np.int64), np.repeat([part.stride for part in parts], chunks),
        np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty((n, 3), np.int64), np.empty(n, np.int64),
        np.empty(n, np.int64), np.empty((n, BINS), np.int32),
    )  # fmt: skip


def _treads(negative: bool) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the three formats' staircases end to end, and where each begins."""
    stairs: list[Any] = [staircase(fmt, negative) for fmt in FORMATS]
    starts = np.cumsum([0, *(stair.at.size for stair in stairs)])
    at, low, width = (np.concatenate([getattr(stair, name) for stair in stairs]) for name in ("at", "low", "width"))
    return at, low, width, starts


def everything(lowest: int = -127, highest: int = 128) -> list[Piece]:
    """Return all float32 x with lowest <= x < highest, whole numbers; negative zero is left out, zero is in."""
    pieces = []
    if lowest < 0:
        begin = _code(max(-highest, 0))
        pieces.append(Piece(NEGATIVE + begin + 1, _code(-lowest) - begin))
    if highest > 0:
        begin = _code(max(lowest, 0))
        pieces.append(Piece(begin, _code(highest) - begin))
    return pieces


def _code(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def fractions() -> list[Piece]:
    """Return x = -k / 2^24, k = 1 ... 2^24: after reduction each fraction occurs once, and exactly."""
    binades = [Piece(NEGATIVE + _code(2.0**-j / 2) + 2 ** (j), 2 ** (23 - j), 2**j) for j in range(23)]
    return [*binades, Piece(NEGATIVE + _code(2.0**-24), 2, 2**23)]
