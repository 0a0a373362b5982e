"""Where the error of one tensor lies and how large it is: counts and maps for the figures of a report.

Contract: taken in the same pass as the metrics, in memory that does not depend on the size of the tensor, stored in
0.3 to 2 kB of JSON a tensor (`vocabulary.Profile`), so that a renderer computes nothing. It decides no verdict.
Errors count by the leading bits of their float64, hence two bins an octave and no logarithm; what is small on a map or
over a tile is held as round(16 log2 x), 4.4 % apart: a third of a millimetre on a printed axis of six decades.
Fails first where rows of different kinds share a bin of the map: it holds the worst of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fa4verify.judgement.layout import OF_TOKENS
from fa4verify.vocabulary import Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fa4verify.judgement.layout import Layout
    from fa4verify.vocabulary import Truth

    Array = NDArray[np.float64]

TILE = 128  # keys in a tile of FA4's 128-key kernels, and the span over which a lane of the emulation repeats
DECISIVE = 0.5  # weight from which one key decides a row
QUIET = 32.0  # |LSE| in nats up to which its own fp32 roundings (docs/fa4.md, LSE: 5e-6) do not hide 8.8e-5
QUARTERS = 17  # quarter ulps on each side of 0
LINES, BLOCKS = 8, 32  # the map of rows, at most
PARTS = 128  # of one octave
# A code is sign, exponent and leading fraction bit of a float64: bias 1023, two codes an octave, 1.0 is code 0.
_SHIFT, _ONE, _CODES = 51, 2 * 1023, 1 << 12


@dataclass(frozen=True)
class Errors:
    """Some rows of a tensor: error and that of a rounded truth, ulp, truth, and where all of them are finite."""

    error: Array
    floor: Array
    spacing: Array
    truth: Array
    both: NDArray[np.bool_]


@dataclass
class Profiler:
    """Running counts and maps of one tensor."""

    shape: Layout
    about: Truth
    errors: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_CODES, np.int64))
    floors: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_CODES, np.int64))
    exact: int = 0
    floor_exact: int = 0
    ulps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * QUARTERS + 1, np.int64))
    in_tile: Array = field(default_factory=lambda: np.zeros(TILE))
    in_tile_count: Array = field(default_factory=lambda: np.zeros(TILE))
    octave: Array = field(default_factory=lambda: np.full(PARTS, -1.0))
    rows: Array | None = None

    def add(self, first_row: int, of: Errors) -> None:
        """Take in some rows."""
        size = np.abs(of.error)
        self.exact += _count(size[of.both], self.errors)
        self.floor_exact += _count(of.floor[of.both], self.floors)
        quarters = np.rint(np.clip(4.0 * of.error[of.both] / of.spacing[of.both], -QUARTERS, QUARTERS))
        self.ulps += np.bincount(quarters.astype(np.int64) + QUARTERS, minlength=self.ulps.size)
        if self.shape.tensor == "y":
            self._octave(of)
        elif self.shape.tensor == "lse":
            self._decided_rows(first_row, size, of.both & (np.abs(of.truth) <= QUIET))
        elif self.shape.tensor in ("dk", "dv"):
            tokens, _ = self._tokens(first_row, len(size))
            column = np.repeat(tokens % TILE, self.shape.row)
            self.in_tile += np.bincount(column, weights=(size * size).ravel(), minlength=TILE)
            self.in_tile_count += np.bincount(column, weights=of.both.ravel().astype(np.float64), minlength=TILE)
        if self.shape.tensor in OF_TOKENS:
            self._map(first_row, of)

    def finish(self, values: Mapping[str, float], where: Mapping[str, tuple[int, ...]]) -> Profile:
        """Return the profile; `values` and `where` are the tensor's metrics and their places."""
        scale = values.get("truth_rms") or 1.0
        if self.shape.tensor == "lse":
            in_tile = np.where(self.in_tile_count > 0, self.in_tile, -1.0)
        else:
            there = self.in_tile_count > 0
            mean = np.sqrt(self.in_tile / np.where(there, self.in_tile_count, 1.0)) / scale
            in_tile = np.where(there, mean, -1.0)
        errors_from, errors = _trimmed(self.errors)
        floors_from, floors = _trimmed(self.floors)
        return Profile(
            errors=errors,
            errors_from=errors_from,
            exact=self.exact,
            floors=floors,
            floors_from=floors_from,
            floor_exact=self.floor_exact,
            ulps=tuple(self.ulps.tolist()),
            in_tile=_sixteenths(in_tile),
            octave=_sixteenths(self.octave),
            rows=() if self.rows is None else tuple(_sixteenths(line, keep=True) for line in self.rows),
            radius=self.about.radius.get(self.shape.tensor),
            worst_key=self._worst_key(where.get("max_abs")),
        )

    def _octave(self, of: Errors) -> None:
        """Take the fraction of x from the significand of 2^x; subnormal results have relative errors of their own."""
        usable = of.both & (of.truth >= 2.0**-126)
        truth = of.truth[usable]
        significand, _ = np.frexp(truth)
        part = np.minimum((np.log2(2.0 * significand) * PARTS).astype(np.int64), PARTS - 1)
        np.maximum.at(self.octave, part, np.abs(of.error[usable] / truth))

    def _decided_rows(self, first_row: int, size: Array, both: NDArray[np.bool_]) -> None:
        moments = self.about.moments
        if "top_key" not in moments or "top_weight" not in moments:
            return
        rows = slice(first_row, first_row + len(size))
        decided = both & (self.shape.matrix(moments["top_weight"])[rows] > DECISIVE)
        column = self.shape.matrix(moments["top_key"])[rows][decided].astype(np.int64) % TILE
        np.maximum.at(self.in_tile, column, size[decided])
        self.in_tile_count += np.bincount(column, minlength=TILE)

    def _tokens(self, first_row: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return token, and head counted over the whole batch, of rows of (batch, tokens, heads, width)."""
        _, tokens, heads, _ = self.shape.shape
        place = np.arange(first_row, first_row + count)
        entry, head = np.divmod(place, heads)
        batch, token = np.divmod(entry, tokens)
        return token, batch * heads + head

    def _map(self, first_row: int, of: Errors) -> None:
        batch, tokens, heads, _ = self.shape.shape
        lines, blocks = min(LINES, batch * heads), min(BLOCKS, tokens)
        if self.rows is None:
            self.rows = np.full((lines, blocks), -1.0)
        token, head = self._tokens(first_row, len(of.error))
        norm = np.sqrt((of.truth * of.truth).sum(axis=1))
        off = np.sqrt((of.error * of.error).sum(axis=1))
        usable = norm > 0
        place = (head * lines // (batch * heads), token * blocks // tokens)
        here = tuple(index[usable] for index in place)
        np.maximum.at(self.rows, here, off[usable] / norm[usable])

    def _worst_key(self, where: tuple[int, ...] | None) -> int | None:
        top = self.about.moments.get("top_key")
        if top is None or where is None or self.shape.tensor not in ("o", "lse"):
            return None
        batch, head, query = (where[0], where[2], where[1]) if self.shape.tensor == "o" else where
        key = int(top[batch, head, query])
        return key if key >= 0 else None


def _count(sizes: Array, into: NDArray[np.int64]) -> int:
    """Count sizes >= 0 by their leading bits; return how many are 0."""
    codes = sizes[sizes > 0].view(np.int64) >> _SHIFT
    into += np.bincount(codes, minlength=_CODES)
    return int(sizes.size - codes.size)


def _trimmed(counts: NDArray[np.int64]) -> tuple[int, tuple[int, ...]]:
    """Return the counts from the first to the last that is not 0, and the code of the first."""
    there = np.flatnonzero(counts)
    if not there.size:
        return 0, ()
    return int(there[0]) - _ONE, tuple(counts[there[0] : there[-1] + 1].tolist())


def _sixteenths(values: Array, *, keep: bool = False) -> tuple[int | None, ...]:
    """Return round(16 log2 x), None for x < 0 (nothing there); () if nothing is anywhere, unless it is to be kept.

    A perfect 0 counts as 2^-64, below every error of a float32 that is not 0 relative to its neighbours.
    """
    if not keep and not (values >= 0).any():
        return ()
    found: list[Any] = np.rint(16 * np.log2(np.maximum(values, 2.0**-64))).astype(np.int64).tolist()
    return tuple(number if value >= 0 else None for number, value in zip(found, values.tolist(), strict=True))
