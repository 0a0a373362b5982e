"""The best real coefficients for any mixture of objectives, which the rounding to float32 then starts from.

Contract: `target` minimises max_i weight_i F_i(c) subject to F_k(c) <= bound_k, where the F are convex models of the
figures: largest relative error (with a margin for fp32 rounding), root mean square, |signed mean|, and the share of
results that round to another bf16, fp16 or e4m3 number. A result differs where the error carries it over a midpoint
m between two numbers of the format; on the f axis that is a stretch of |p(f) - m| / (m ln 2) around f = log2 m, so the
share is a sum of absolute errors at 128, 1024 or 8 known fractions. In fp32 p itself is rounded to m from half an ulp
around it, and m then goes to its even neighbour: every other midpoint acts half an ulp higher, the rest half an ulp
lower, which at degree 5 is as much as the error.
How: Kelley's cutting planes, one linear program of at most nine unknowns each.
Known failure mode: the model of the shares is linear in the error, hence off by the error's own size (0.2 % at degree
2, useless for bf16 at degree 1, where stretches overlap); the search that follows counts.
`remez.minimax` gives the largest error alone without the margin, and to any precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import BF16, E4M3, FP16, Format, round_to, ulp

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from fa4verify.exp2.remez import Shape

FORMATS: dict[str, Format] = {"bf16": BF16, "fp16": FP16, "e4m3": E4M3}
OBJECTIVES = ("max", "rms", "bias", *FORMATS)

_GRID = 2048
_CUTS = 150
_PENALTY = 1e3
_ROWS = 400  # of the program: older planes no longer bind; without the limit six figures take half a minute
_CLOSE = 1e-5  # relative gap between the bound and the best value; float32 steps cost more than that up to degree 5


def midpoints(fmt: Format, interval: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Return the midpoints between neighbouring numbers of a format within 2^interval, ascending."""
    low, high = 2.0 ** interval[0], 2.0 ** interval[1]
    found = []
    value = 0.5
    while value < high:
        step = float(ulp(value, fmt))
        if low < value + step / 2 < high:
            found.append(value + step / 2)
        value += step
    return np.array(found)


def lifted(middle: npt.NDArray[np.float64], fmt: Format) -> npt.NDArray[np.float64]:
    """Return how far above a midpoint p must come in real arithmetic to count as above it in fp32: +- half an ulp."""
    half = np.where(middle >= 1.0, 2.0**-24, 2.0**-25)
    return np.where(round_to(middle, fmt) < middle, half, -half)


def margin(f: npt.NDArray[np.float64], degree: int, shared: bool) -> npt.NDArray[np.float64]:
    """Return how much fp32 may add to the relative error at f: two roundings, and that of f = x - n itself.

    The last FMA rounds p by half an ulp (2^-24 from 1 on, 2^-25 below), the one before it by a quarter of that times f.
    Where x `shared` fractions (floor), f in (1/2, 1] comes from x whose exact one is up to 2^-25 away. Degree 0 rounds
    nothing.
    """
    p = np.exp2(f)
    last = np.where(p >= 1.0, 2.0**-24, 2.0**-25) / p if degree > 0 else np.zeros_like(p)
    before = 2.0**-25 * np.abs(f) / p if degree > 1 else np.zeros_like(p)
    reduction = np.where(f > 0.5, 2.0**-25 * np.log(2.0), 0.0) if shared else np.zeros_like(p)
    return last + before + reduction


@dataclass(frozen=True)
class _Model:
    """The figures of a shape as functions of its free numbers u, in an orthonormal basis."""

    back: npt.NDArray[np.float64]  # c = fixed + back @ u
    fixed: npt.NDArray[np.float64]
    rows: npt.NDArray[np.float64]  # relative error on the grid: rows @ u + base
    base: npt.NDArray[np.float64]
    allowance: npt.NDArray[np.float64]
    at_midpoints: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]

    def cut(self, name: str, u: npt.NDArray[np.float64]) -> list[tuple[float, npt.NDArray[np.float64]]]:
        """Return (value, subgradient) pairs of a figure at u, the largest value first."""
        if name in self.at_midpoints:
            rows, base = self.at_midpoints[name]
            error = rows @ u + base
            return [(float(np.abs(error).sum() / np.log(2.0)), np.sign(error) @ rows / np.log(2.0))]
        error = self.rows @ u + self.base
        inner, rows = error[1:-1], self.rows[1:-1]  # midpoints of equal stretches; the ends are for the largest alone
        if name == "rms":
            value = float(np.sqrt(np.mean(inner**2)))
            return [(value, inner @ rows / (inner.size * max(value, 1e-300)))]
        if name == "bias":
            mean = float(inner.mean())
            return [(abs(mean), np.sign(mean) * rows.mean(axis=0))]
        size = np.abs(error) + self.allowance
        padded = np.concatenate([[-1.0], size, [-1.0]])
        peaks = np.flatnonzero((size >= padded[:-2]) & (size >= padded[2:]))
        peaks = peaks[np.argsort(-size[peaks])][:6]  # every peak is a cut of its own: far fewer programs
        return [(float(size[i]), np.sign(error[i]) * self.rows[i]) for i in peaks]

    def constant(self, u: npt.NDArray[np.float64]) -> float:
        """Return p(0)."""
        return float(self.fixed[0] + self.back[0] @ u)

    def value(self, name: str, u: npt.NDArray[np.float64]) -> float:
        return self.cut(name, u)[0][0]


def _model(shape: Shape, over_x: bool) -> _Model:
    fixed, basis = shape.space()
    powers = np.arange(shape.degree + 1)
    left, right = shape.interval
    grid = left + (right - left) * (np.arange(_GRID) + 0.5) / _GRID
    grid = np.concatenate([[left], grid, [right]])

    def relative(f: npt.NDArray[np.float64], columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray((f[:, None] ** powers) @ columns * np.exp2(-f)[:, None if columns.ndim == 2 else slice(None)])

    def base(f: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray((f[:, None] ** powers) @ fixed * np.exp2(-f) - 1.0)

    turn = np.linalg.inv(np.linalg.qr(relative(grid[1:-1], basis), mode="r")) * np.sqrt(_GRID)
    at_midpoints = {}
    for name, fmt in FORMATS.items():
        middle = midpoints(fmt, shape.interval)
        f = np.log2(middle)
        at_midpoints[name] = relative(f, basis @ turn), base(f) - lifted(middle, fmt) / middle
    return _Model(
        back=basis @ turn,
        fixed=fixed,
        rows=relative(grid, basis @ turn),
        base=base(grid),
        allowance=margin(grid, shape.degree, over_x and shape.range_reduction == "floor"),
        at_midpoints=at_midpoints,
    )


def target(
    shape: Shape, weights: Mapping[str, float], bounds: Mapping[str, float] | None = None, *, over_x: bool = True
) -> npt.NDArray[np.float64]:
    """Return the real coefficients (float64, constant first) that are best for a mixture of figures.

    Parameters
    ----------
    shape
        What is asked of the polynomial; `at-least-one` bounds p(0) from below.
    weights
        Objective -> weight; what is minimised is the largest weight * figure.
    bounds
        Objective -> what the figure may not exceed. Where no coefficients meet all bounds (on the model, which is a
        little off), the bounds are exceeded as little as possible.
    over_x
        The largest error allows for every x that shares a fraction, not for the fractions alone.
    """
    from scipy.optimize import linprog

    model = _model(shape, over_x)
    n = model.rows.shape[1]
    if n == 0:
        return model.fixed
    u = -(model.rows[1:-1].T @ model.base[1:-1]) / _GRID  # least squares
    spread = 30.0 * max(model.value("rms", u), 1e-12)
    box = [(v - spread, v + spread) for v in u] + [(None, None)]
    unit = max(weight * model.value(name, u) for name, weight in weights.items())
    # Each figure as gain * figure - offset, so that the objective is at most 1 at the optimum, as is a bound that is
    # met; exceeding it by a thousandth counts as much as the objective doubled, so the program always has a solution.
    terms = [(name, weight / unit, 0.0) for name, weight in weights.items()]
    terms += [(name, _PENALTY / bound, _PENALTY - 1.0) for name, bound in (bounds or {}).items() if bound > 0]
    matrix: list[npt.NDArray[np.float64]] = []
    right: list[float] = []
    best, best_value = u, np.inf
    lowest: list[npt.NDArray[np.float64]] = []
    if shape.constant_term == "at-least-one":
        lowest = [np.append(-model.back[0], 0.0)]
    for _ in range(_CUTS):
        value = 0.0
        for name, gain, offset in terms:
            for figure, slope in model.cut(name, u):
                value = max(value, gain * figure - offset)
                matrix.append(np.append(gain * slope, -1.0))
                right.append(float(gain * (slope @ u - figure) + offset))
        if value < best_value and (shape.constant_term != "at-least-one" or model.constant(u) >= 1.0 - 1e-12):
            best, best_value = u, value
        matrix, right = matrix[-_ROWS:], right[-_ROWS:]
        planes, sides = np.array(matrix + lowest), np.array(right + [model.fixed[0] - 1.0] * len(lowest))
        solved = linprog(np.append(np.zeros(n), 1.0), A_ub=planes, b_ub=sides, bounds=box)
        if solved.status != 0 or solved.fun > best_value * (1.0 - _CLOSE):
            break
        u = solved.x[:n]
    return np.asarray(model.fixed + model.back @ best)
