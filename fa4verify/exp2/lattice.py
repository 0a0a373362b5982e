"""Which float32 coefficients lie near real ones: a lattice, reduced so that a step changes the polynomial little.

Contract: with each coefficient's float32 spacing fixed near the real optimum, coefficient vectors are a lattice; LLL
under the root mean square of the relative error gives a basis of short steps (at degree 5 a unit step of p1 alone moves
the error by 2e-8, the reduced ones by 2e-11 to 8e-10). `near` rounds real coefficients in that basis (Babai).
Known failure mode: where a coefficient crosses a power of two its spacing changes; the lattice keeps the finer of both
sides, and what float32 does not hold is rounded by `to_float32`, so that a step may turn out to be none.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from fa4verify.exp2.remez import Shape

_SCALE = 2.0**60  # of the integers that LLL sees, over the longest vector
_NODES = 256
_NEAR_POWER = 1e-6  # a coefficient this close below or above a power of two gets the finer spacing


def _spacing(value: float) -> float:
    """Return the float32 spacing near a value, the finer one next to a power of two."""
    mantissa, exponent = np.frexp(abs(value) * (1.0 - _NEAR_POWER))
    return float(2.0 ** (int(exponent) - 24)) if mantissa else 2.0**-149


class Lattice:
    """The float32 polynomials of a shape near real coefficients; points are integer vectors of the free coefficients.

    `basis` (rows) is the reduced one, `lengths` the root mean square change of the relative error by a step along each.
    """

    def __init__(self, shape: Shape, center: npt.NDArray[np.float64]) -> None:
        self.free = np.arange(1 if shape.constant_term == "one" else 0, shape.degree + 1)
        self.fixed = np.zeros(shape.degree + 1)
        self.fixed[0] = 1.0
        self.spacing = np.array([_spacing(c) for c in center[self.free]])
        left, right = shape.interval
        f = left + (right - left) * (np.arange(_NODES) + 0.5) / _NODES
        rows = self.spacing[:, None] * f ** self.free[:, None] * np.exp2(-f)
        self.basis = _reduced(rows)
        self.lengths = np.sqrt(((self.basis @ rows) ** 2).mean(axis=1)) if len(rows) else np.zeros(0)

    @property
    def dimension(self) -> int:
        """Number of free coefficients."""
        return self.free.size

    def near(self, coefficients: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the point that rounding in the reduced basis gives."""
        if not self.dimension:
            return np.zeros(0, np.int64)
        whole = np.round(coefficients[self.free] / self.spacing)  # first the size, then the rest, exactly enough
        rest = coefficients[self.free] / self.spacing - whole
        turns = np.round(np.linalg.solve(self.basis.T.astype(np.float64), rest)).astype(np.int64)
        return whole.astype(np.int64) + turns @ self.basis

    def to_float32(self, points: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the coefficients of points (..., dimension), constant first, rounded to float32 where they must be."""
        out = np.empty((*points.shape[:-1], self.fixed.size), np.float32)
        out[:] = self.fixed
        out[..., self.free] = points * self.spacing
        return out

    def scatter(self, sizes: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return random differences that change the relative error by about `sizes` (one each) in any direction."""
        turns = generator.normal(size=(sizes.size, self.dimension)) * sizes[:, None] / self.lengths
        return np.asarray(np.rint(turns).astype(np.int64) @ self.basis)

    def steps(self) -> npt.NDArray[np.int64]:
        """Return the differences to the neighbours: sums of basis vectors times -1, 0, 1.

        From 7 vectors on of at most 3 of them; of 1 or 2 vectors times -3 ... 3, since so few have no better one.
        """
        if not self.dimension:
            return np.zeros((0, 0), np.int64)
        reach = 3 if self.dimension <= 2 else 1
        signs = np.array(list(product(range(-reach, reach + 1), repeat=self.dimension)))
        used = (signs != 0).sum(axis=1)
        return np.asarray(signs[(used > 0) & ((used <= 3) | (self.dimension < 7))] @ self.basis)


def _reduced(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the integer combinations of the rows that LLL finds short (FLINT, delta 0.99)."""
    from flint import fmpz_mat

    if not len(rows):
        return np.zeros((0, 0), np.int64)
    _, r = np.linalg.qr(rows.T)  # the same lengths in as few columns
    scaled = r.T * (_SCALE / np.abs(r).max())
    _, turn = fmpz_mat([[int(v) for v in row] for row in scaled]).lll(True)
    return np.array([[int(v) for v in row] for row in turn.tolist()], np.int64)
