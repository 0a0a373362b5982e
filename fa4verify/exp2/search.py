"""Rounding to float32: a search over lattice points whose objective is the real fp32 FMA evaluation.

Contract: `search` starts from rounded real optima and returns the best points it met. It scatters candidates around the
best point, at distances from 1e-10 to 3e-8 in relative error, measures each only until it is worse than the best so
far, and moves; equals count, so that plateaus of counts are walked. When nothing better comes, all neighbours (sums of
reduced basis vectors times -1, 0, 1) are tried, and it starts again elsewhere. Two threads, each with its own sequence.
With `Whole`, for degrees whose errors are far above float32's, it takes steps of falling length instead.
Why scattered and not neighbour by neighbour: at degree 5 neighbours lie 2e-11 apart, while results change from about
1e-9 on (a bit of 128 midpoints); a climb over neighbours stopped at 162 bf16 mismatches, scattering reached 147.
Figures that must stay within limits come first: while one is exceeded, the excess is what is minimised.
Known failure mode: a local search proves nothing; tests/exp2/test_fit.py holds what it must reach, found otherwise.
The points visited depend on the seed, how many of them on the time, or on `candidates` where a result must be the
same on every machine.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.exp2.goals import Goal, Whole
from fa4verify.exp2.merit import horner

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fa4verify.exp2.lattice import Lattice
    from fa4verify.exp2.remez import Shape
    from fa4verify.exp2.sample import Sample

    Points = npt.NDArray[np.int64]

_THREADS = 2
_CHUNK = 256  # candidates measured under one limit; the next chunk profits from what this one found
_KEPT = 32
_LONGEST = {0: 20, 1: 16, 2: 12, 3: 9}  # log2 of the first steps of a descent, after how far off the real model may be
_RANDOM = 8
_LONGEST_DESCENT = 60.0
_FEW_FREE = 3  # free coefficients up to which all 26 neighbours are measured over every fraction
_HARD = 1024  # fractions that a true maximum adds; cheap, since losers leave at the first few hundred
_NEAREST, _FARTHEST = 1e-10, 3e-8  # a five hundredth and half of fp32's own rounding at 1
_CHECK = 12  # chunks without a better one before the sample's largest error is made the true one
_PATIENCE = 120  # such chunks before a new start: 30,000 candidates


class _Search:
    """What a search knows: the best points so far and, for the largest error, its own growing sample."""

    def __init__(
        self, shape: Shape, lattice: Lattice, gauge: Sample | Whole, goal: Goal, deadline: float, most: float
    ) -> None:
        self.shape, self.lattice, self.gauge, self.goal = shape, lattice, gauge, goal
        self.deadline, self.most = deadline, most
        self.steps = lattice.steps()
        self.evaluated = 0
        self.kept: dict[bytes, float] = {}

    @property
    def over(self) -> bool:
        return self.evaluated >= self.most or time.monotonic() >= self.deadline

    def allowed(self, candidates: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Tell which candidates have the constant and the continuity that the shape asks for, in fp32."""
        good = np.isfinite(candidates).all(axis=1)
        if self.shape.constant_term == "at-least-one":
            good &= candidates[:, 0] >= 1.0
        if self.shape.continuous:
            good &= np.array([continuous(c, self.shape.interval) for c in candidates])
        return np.asarray(good)

    def best_of(self, points: Points, score: float) -> tuple[int, float]:
        """Return the index and the score of the best point below `score`, -1 and `score` if none is."""
        best = -1
        for start in range(0, len(points), _CHUNK):
            candidates = self.lattice.to_float32(points[start : start + _CHUNK])
            indices = np.flatnonzero(self.allowed(candidates))
            if not indices.size:
                continue
            self.evaluated += indices.size
            scores = self.goal.scores(
                self.gauge.measure(candidates[indices], self.goal.names, self.goal.cutoffs(score))
            )
            if isinstance(self.gauge, Whole):  # coarse: a runner-up may be the best over every fraction
                for each, value in zip(candidates[indices], scores, strict=True):
                    self._keep(each, float(value))
            k = int(np.argmin(scores))
            if scores[k] < score:
                best, score = start + int(indices[k]), float(scores[k])
                self._keep(candidates[indices[k]], score)
        return best, score

    def _keep(self, candidate: npt.NDArray[np.float32], score: float) -> None:
        self.kept[candidate.tobytes()] = score
        if len(self.kept) > 4 * _KEPT:
            self.kept = dict(sorted(self.kept.items(), key=lambda item: item[1])[: 2 * _KEPT])

    def descend(self, points: Points, generator: np.random.Generator) -> None:
        """Walk basis vectors and random directions from the best start, the longest first; then try all neighbours.

        Basis vectors alone stop in the creases of a sum of absolute values: 0.6 % too high at degree 2.
        """
        best, score = self.best_of(points, np.inf)
        if best < 0:  # none is as continuous as asked for: look around
            points = np.concatenate([points[:1] + self.steps * factor for factor in (1, 2, 3, 5)])
            best, score = self.best_of(points, np.inf)
            points = points[best : best + 1]
            best = 0
        point = points[best]
        directions = np.concatenate([self.lattice.basis, -self.lattice.basis])
        for length in range(_LONGEST[self.shape.degree], -1, -1):
            while not self.over:
                sizes = np.full(_RANDOM, self.lattice.lengths.mean() * 2.0**length)
                tried = np.concatenate([directions * 2**length, self.lattice.scatter(sizes, generator)])
                best, score = self.best_of(point + tried, score)
                if best < 0:
                    break
                point = point + tried[best]
        if not self.over:
            best, score = self.best_of(point + self.steps, score)
            point = point if best < 0 else point + self.steps[best]
        if not self.over and isinstance(self.gauge, Whole) and self.lattice.dimension <= _FEW_FREE:
            self.gauge = Whole(self.gauge.floor, over_x=self.gauge.over_x, stride=1)
            self.kept = {}
            known = np.concatenate([point[None], points])  # a coarse step may have been none
            best, score = self.best_of(known, np.inf)
            point = known[best]
            while best >= 0 and not self.over:
                best, score = self.best_of(point + self.steps, score)
                point = point if best < 0 else point + self.steps[best]

    def wander(self, points: Points, generator: np.random.Generator) -> _Search:
        """Scatter around starts until the time is over; returns itself."""
        while True:
            start = points[int(generator.integers(len(points)))]
            if self.kept:  # a different valley than last time
                start = start + self.lattice.scatter(np.array([_FARTHEST]), generator)[0]
            best, score = self.best_of(start[None], np.inf)
            if best < 0:
                around = start + self._scattered(4 * _CHUNK, generator)
                best, score = self.best_of(around, np.inf)
                start = around[best]
            if best >= 0:
                self._improve(start, score, generator)
            if self.over:
                return self

    def _scattered(self, count: int, generator: np.random.Generator) -> Points:
        sizes = np.exp(generator.uniform(np.log(_NEAREST), np.log(_FARTHEST), count))
        return self.lattice.scatter(sizes, generator)

    def _improve(self, point: Points, score: float, generator: np.random.Generator) -> None:
        idle = 0
        while idle < _PATIENCE and not self.over:
            candidates = point + self._scattered(_CHUNK, generator)
            best, found = self.best_of(candidates, float(np.nextafter(score, np.inf)))
            idle = 0 if found < score else idle + 1
            if best >= 0:
                point, score = candidates[best], found
            if idle == _CHECK:
                true = self._true(point, score)
                idle = 0 if true > score else idle
                score = true
        while not self.over:
            best, score = self.best_of(point + self.steps, score)
            if best < 0:
                break
            point = point + self.steps[best]
        self._true(point, score)

    def _true(self, point: Points, score: float) -> float:
        """Add the fractions of a point's true largest errors to the sample; return its score with them."""
        if isinstance(self.gauge, Whole) or "max" not in self.goal.names:
            return score
        candidate = self.lattice.to_float32(point)
        self.gauge.add_hard(candidate, _HARD)
        score = float(self.goal.scores(self.gauge.measure(candidate[None], self.goal.names))[0])
        self._keep(candidate, score)
        return score

    def best(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Return what was kept, the best first, measured once more: the set of hard fractions has grown since."""
        candidates = np.array([np.frombuffer(key, np.float32) for key in self.kept])
        scores = np.array(list(self.kept.values()))
        if not isinstance(self.gauge, Whole):
            scores = self.goal.scores(self.gauge.measure(candidates, self.goal.names))
        return tuple(candidates[np.argsort(scores, kind="stable")][:_KEPT])


def ends(coefficients: npt.NDArray[np.float32], interval: tuple[float, float]) -> tuple[float, float]:
    """Return the fp32 results at the lower and upper end of the fractions."""
    out = np.empty(2, np.float32)
    horner(np.array(interval, np.float32), coefficients, out)
    return float(out[0]), float(out[1])


def continuous(coefficients: npt.NDArray[np.float32], interval: tuple[float, float]) -> bool:
    """Tell whether the fp32 results at the two ends of an octave are exactly a factor of two apart."""
    left, right = ends(coefficients, interval)
    return right == 2.0 * left


def search(
    shape: Shape,
    lattice: Lattice,
    gauge: Sample | Whole,
    goal: Goal,
    starts: Sequence[npt.NDArray[np.float64]],
    *,
    seconds: float,
    candidates: int | None = None,
    seed: int = 0,
) -> tuple[tuple[npt.NDArray[np.float32], ...], int]:
    """Return good float32 coefficients near real ones, the best first, and how many candidates were looked at.

    Parameters
    ----------
    shape, goal
        What is asked.
    lattice
        Of the shape, near the first start.
    gauge
        What measures: a `Sample`, aimed at the first start, or `Whole`.
    starts
        Real coefficients, constant first.
    seconds
        Time after which nothing new is begun.
    candidates
        Instead of the time: how many candidates to look at, about; the same on every machine.
    seed
        Of both threads' random numbers.
    """
    points = np.array([lattice.near(start) for start in starts])
    first = lattice.to_float32(points[:1])
    if not lattice.dimension:
        return (first[0],), 1
    gauge.measure(first, goal.names)  # compiles, outside the time
    deadline = time.monotonic() + seconds if candidates is None else np.inf
    if isinstance(gauge, Whole):
        # Stops by itself, after 2 to 10 s on two idle cores; cut short it would lack the last, finest steps.
        alone = _Search(shape, lattice, gauge, goal, time.monotonic() + _LONGEST_DESCENT, np.inf)
        alone.descend(points, np.random.default_rng(seed))
        return alone.best(), alone.evaluated
    most = np.inf if candidates is None else candidates / _THREADS
    threads = [_Search(shape, lattice, copy(gauge), goal, deadline, most) for _ in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        generators = [np.random.default_rng([seed, k]) for k in range(_THREADS)]
        list(pool.map(lambda pair: pair[0].wander(points, pair[1]), zip(threads, generators, strict=True)))
    merged = threads[0]
    for other in threads[1:]:
        merged.kept.update(other.kept)
    return merged.best(), sum(each.evaluated for each in threads)
