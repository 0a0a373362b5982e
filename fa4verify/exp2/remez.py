"""The best polynomial for 2^f in real arithmetic: Remez's exchange, in mpmath.

Contract: for a degree, a range reduction and what p(0) and the octave edges must satisfy (`Shape`), the coefficients
that minimise the largest |p(f) 2^-f - 1| over the fractions, to 40 digits, with the points where it is attained.
How: one point enters the reference an iteration and the sign of the error at each point is that of the null vector of
the basis there (Stiefel's rule, a dual simplex). The textbook rule, plain alternation, needs a Haar basis and fails
here: f, f^2, ... all vanish at f = 0, which lies inside [-1/2, 1/2], and Sollya's `fpminimax` gives up on [0, 1] when
the constant is fixed ("degenerated system in a non Haar context").
Known failure mode: where the best approximation is not unique the exchange may stall; it then raises, it never returns
a polynomial that has not levelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from mpmath import mp, workdps

if TYPE_CHECKING:
    import numpy.typing as npt

    from fa4verify.exp2.sets import RangeReduction

ConstantTerm = Literal["one", "free", "at-least-one"]

_DIGITS = 50
_LEVELLED = 1e-25  # relative
_GRID = 4096
_RIVAL = 1.0 - 1e-4  # lower peaks of the grid cannot be the highest: it misses 1e-5 of a peak at most
_ITERATIONS = 400


@dataclass(frozen=True)
class Shape:
    """What is asked of a polynomial before any objective.

    `constant_term`: p(0) = 1, free, or at least 1 (below 1 the clamp at -127 gives NaN). `continuous`: no step where
    the octaves meet, p(right end) = 2 p(left end).
    """

    degree: int
    constant_term: ConstantTerm = "one"
    continuous: bool = False
    range_reduction: RangeReduction = "floor"

    def __post_init__(self) -> None:
        if not 0 <= self.degree <= 7:
            raise ValueError(f"degrees 0 to 7 can be fitted, got {self.degree}")
        if self.constant_term not in get_args(ConstantTerm):
            raise ValueError(
                f"the constant term is one of {', '.join(get_args(ConstantTerm))}, not {self.constant_term}"
            )
        if self.continuous and self.degree == 0:
            raise ValueError("a constant cannot be continuous across octaves: p(1) = 2 p(0) leaves only 0")

    @property
    def interval(self) -> tuple[float, float]:
        """The fractions: [0, 1], or [-1/2, 1/2] where the reduction rounds to nearest; both ends occur."""
        return (0.0, 1.0) if self.range_reduction == "floor" else (-0.5, 0.5)

    def pinned(self) -> Shape:
        """Return this shape with p(0) = 1."""
        return Shape(self.degree, "one", self.continuous, self.range_reduction)

    def space(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (fixed, basis): the polynomials are fixed + basis @ free numbers, row k the coefficient of f^k.

        `at-least-one` is spanned as `free` is. All entries are small dyadic rationals or thirds of such.
        """
        degree = self.degree
        fixed, basis = np.zeros(degree + 1), np.eye(degree + 1)
        if self.constant_term == "one":
            fixed[0], basis = 1.0, basis[:, 1:]
        if self.continuous:  # c1 is what the others leave: sum of c_k edge_k = 0
            left, right = self.interval
            edge = np.array([right**k - 2.0 * left**k for k in range(degree + 1)])
            basis = basis[:, ~basis[1].astype(bool)]
            basis[1], fixed[1] = -(edge @ basis) / edge[1], -(edge @ fixed) / edge[1]
        return fixed, basis


@dataclass(frozen=True)
class Minimax:
    """A best approximation: coefficients (mpf, constant first), the levelled error and the points that attain it."""

    coefficients: tuple[Any, ...]
    error: Any
    points: tuple[Any, ...]
    exchanges: int


def _columns(shape: Shape) -> tuple[list[Any], list[list[Any]]]:
    """Return fixed part and basis as mpf lists; thirds (nearest, continuous) are restored from float64 exactly."""
    fixed, basis = shape.space()

    def exact(value: float) -> Any:
        tripled = round(value * 3 * 2**10)
        return mp.mpf(tripled) / (3 * 2**10)

    return [exact(v) for v in fixed], [[exact(v) for v in column] for column in basis.T]


class _Problem:
    """Error function and exchange for one shape, at the working precision of the caller."""

    def __init__(self, shape: Shape) -> None:
        self.left, self.right = (mp.mpf(end) for end in shape.interval)
        self.fixed, self.basis = _columns(shape)
        self._rows: dict[Any, list[Any]] = {}
        self.grid = np.linspace(*shape.interval, _GRID + 1)

    def row(self, f: Any) -> list[Any]:
        """Return the basis at f, relative to 2^f."""
        if f not in self._rows:  # a point stays in the reference for many exchanges
            scale = mp.power(2, -f)
            self._rows[f] = [mp.polyval(column[::-1], f) * scale for column in self.basis]
        return self._rows[f]

    def target(self, f: Any) -> Any:
        return 1 - mp.polyval(self.fixed[::-1], f) * mp.power(2, -f)

    def polynomial(self, free: Any) -> list[Any]:
        return [
            self.fixed[k] + sum((column[k] * c for column, c in zip(self.basis, free, strict=True)), mp.mpf(0))
            for k in range(len(self.fixed))
        ]

    def worst(self, p: list[Any]) -> tuple[Any, Any]:
        """Return the point of the largest |error| and the signed error there."""
        size = np.abs(np.polyval([float(c) for c in p[::-1]], self.grid) * np.exp2(-self.grid) - 1.0)
        padded = np.concatenate([[-1.0], size, [-1.0]])
        peaks = np.flatnonzero((size >= padded[:-2]) & (size >= padded[2:]) & (size > _RIVAL * size.max()))
        points = [self._refine(p, mp.mpf(float(self.grid[i]))) for i in peaks]

        def error(f: Any) -> Any:
            return mp.polyval(p[::-1], f) * mp.power(2, -f) - 1

        best = max(points, key=lambda f: abs(error(f)))
        return best, error(best)

    def _refine(self, p: list[Any], f: Any) -> Any:
        """Newton on the error's derivative, p' - ln 2 p; stays within two grid steps, ends stay ends."""
        slope = [k * p[k] - mp.log(2) * p[k - 1] for k in range(1, len(p))] + [-mp.log(2) * p[-1]]
        curve = [k * slope[k] for k in range(1, len(slope))]
        start, reach = f, 2 * (self.right - self.left) / _GRID
        for _ in range(12):
            bend = mp.polyval(curve[::-1], f) if curve else mp.mpf(0)
            if bend == 0:
                return start
            step = mp.polyval(slope[::-1], f) / bend
            f = f - step
            if abs(f - start) > reach:
                return start
            if abs(step) < mp.mpf(10) ** (-_DIGITS // 2 - 5):
                break
        return min(max(f, self.left), self.right)


def _level(problem: _Problem, reference: list[Any]) -> tuple[list[Any], list[Any], Any, list[Any]]:
    """Return (signs, weights, level, free numbers) of the reference of n + 1 points."""
    n = len(problem.basis)
    rows = [problem.row(f) for f in reference]
    targets = [problem.target(f) for f in reference]
    # Null vector: weights that sum to one in a direction that cannot be orthogonal to it, then scaled by size.
    system = mp.matrix(n + 1, n + 1)
    for i, row in enumerate(rows):
        for j in range(n):
            system[j, i] = row[j]
        system[n, i] = mp.mpf(1) / (3 + i * i + i)
    right = mp.matrix(n + 1, 1)
    right[n] = 1
    null = mp.lu_solve(system, right)
    size = sum(abs(v) for v in null)
    moment = sum(v * t for v, t in zip(null, targets, strict=True))
    turn = -1 if moment > 0 else 1
    signs = [turn * mp.sign(v) for v in null]
    weights = [abs(v) / size for v in null]
    level = abs(moment) / size
    if n == 0:
        return signs, weights, level, []
    equations, values = mp.matrix(n, n), mp.matrix(n, 1)
    dropped = min(range(n + 1), key=lambda i: weights[i])  # any n rows do; without the least certain one
    for r, i in enumerate([i for i in range(n + 1) if i != dropped]):
        for j in range(n):
            equations[r, j] = rows[i][j]
        values[r] = targets[i] + signs[i] * level
    return signs, weights, level, list(mp.lu_solve(equations, values))


def _leaving(
    problem: _Problem, reference: list[Any], signs: list[Any], weights: list[Any], point: Any, sign: Any
) -> int:
    """Return which point of the reference makes place, so that the weights stay positive."""
    n = len(problem.basis)
    system, column = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
    for i, f in enumerate(reference):
        for j, value in enumerate(problem.row(f)):
            system[j, i] = signs[i] * value
        system[n, i] = 1
    for j, value in enumerate(problem.row(point)):
        column[j] = sign * value
    column[n] = 1
    rates = mp.lu_solve(system, column)
    return min((i for i in range(n + 1) if rates[i] > 0), key=lambda i: weights[i] / rates[i])


def minimax(shape: Shape) -> Minimax:
    """Return the polynomial of a shape whose largest relative error against 2^f is smallest.

    Parameters
    ----------
    shape
        Degree, constant term, continuity, range reduction. `at-least-one` gives the free optimum where its p(0) is at
        least 1 and the pinned one elsewhere, which is the optimum since the error is convex in the coefficients.

    Raises
    ------
    ArithmeticError
        The exchange did not level within 400 steps.
    """
    if shape.constant_term == "at-least-one":
        free = minimax(Shape(shape.degree, "free", shape.continuous, shape.range_reduction))
        return free if free.coefficients[0] >= 1 else minimax(shape.pinned())
    with workdps(_DIGITS):
        problem = _Problem(shape)
        n = len(problem.basis)
        middle, half = (problem.right + problem.left) / 2, (problem.right - problem.left) / 2
        # Chebyshev's points, turned a little so that none is 0, where a pinned basis vanishes.
        reference = [middle - half * mp.cos(mp.pi * (i + mp.mpf("0.37")) / (n + 1)) for i in range(n + 1)]
        for exchanges in range(_ITERATIONS):
            signs, weights, level, free_numbers = _level(problem, reference)
            p = problem.polynomial(free_numbers)
            point, error = problem.worst(p)
            reached = abs(error)
            if reached - level <= _LEVELLED * reached:
                return Minimax(tuple(p), reached, tuple(sorted(reference)), exchanges)
            reference[_leaving(problem, reference, signs, weights, point, mp.sign(error))] = point
    raise ArithmeticError(f"the exchange did not level for {shape}: {mp.nstr(level, 8)} < {mp.nstr(reached, 8)}")
