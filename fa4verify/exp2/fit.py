"""Coefficients for FA4's software exp2 that are best in an objective, as float32 and in fp32 arithmetic.

Contract: `fit` returns sets of a shape that were measured over all fractions that occur (`merit`), each with a proven
bound of its error in real arithmetic: one set for one objective, the Pareto front for several (sets of which none is
at least as good in all of them). Steps: the real optimum (`remez`, `targets`), the lattice of float32 coefficients
around it (`lattice`), a search with the FMA evaluation as objective (`search`), the best few measured over everything.
Objectives: `max` over all float32 x in [-126, 0]; `rms` and |`bias`| (signed mean) of the relative error and the shares
of results that round differently in `bf16`, `fp16`, `e4m3`, all uniform in the fraction f. A set for `bias` alone keeps
its rms within 2 % of the best unbiased one's, since countless bad sets have mean 0.
Known failure mode: the best found, not the best there is; more seconds may find better from degree 4 on.
Figures that earlier searches reached: issue "The exp2 laboratory", ratios to FA4's own sets; tests/exp2/test_fit.py.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.exp2.certify import Certificate, certify
from fa4verify.exp2.goals import Goal, Whole
from fa4verify.exp2.lattice import Lattice
from fa4verify.exp2.merit import Merit, merit
from fa4verify.exp2.remez import Shape, minimax
from fa4verify.exp2.sample import Sample
from fa4verify.exp2.search import continuous, ends, search
from fa4verify.exp2.sets import CoefficientSet, SetError
from fa4verify.exp2.targets import FORMATS, OBJECTIVES, target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

_WHOLE_UP_TO = 3  # from degree 4 on fp32's own rounding is worth a search; below, windows would hold every fraction
_ROUNDING_ALONE = 6  # from here on sets differ in rounding errors alone, by less than 2^15 fractions tell
_FEW, _MANY = 10, 32  # finalists measured over every fraction, 0.1 s each
_UNBIASED = 1.02
_SAMPLED_RMS, _SAMPLED_MEAN = 1e-3, 0.03  # by how much 2^15 fractions may flatter a set over another like it
_ROUNDINGS = 2.5e-7  # what fp32 evaluation may add to a relative error, with room: 2^-22
_FRONT = {2: 6, 3: 4}  # steps of the grid of compromises between that many objectives; 2 beyond


class FitError(SetError):
    """No set satisfies what was asked; one line, for the user."""


@dataclass(frozen=True)
class Fit:
    """A set that was found, and what is known about it.

    `merit` is measured over all fractions, `confirmed` is the largest error over all 1,123,811,328 float32 x in
    [-126, 0) by the exhaustive pass of `statistics` (NaN where it was not asked for); `certificate` bounds the same
    polynomial in real arithmetic, `best_real` is the smallest such bound that real coefficients of the shape have.
    `seconds` is the whole call's, without the confirmation.
    """

    chosen: CoefficientSet
    shape: Shape
    objectives: tuple[str, ...]
    merit: Merit
    certificate: Certificate
    best_real: float
    evaluated: int
    seconds: float
    confirmed: float = math.nan

    @property
    def hazards(self) -> tuple[str, ...]:
        """What this set does that FA4's do not, in words."""
        found = []
        if self.chosen.coefficients[0] < 1.0:
            found.append("p0 < 1: every masked score (x <= -127, -inf) becomes NaN instead of 0")
        left, right = ends(self.chosen.float32, self.shape.interval)
        if right > 2.0 * left:
            found.append(f"not monotone: steps down where octaves meet, {right!r} > 2 * {left!r}")
        return tuple(found)


@dataclass(frozen=True)
class Candidate:
    """Float32 coefficients and their figures over all fractions."""

    coefficients: npt.NDArray[np.float32]
    merit: Merit


def fit(
    shape: Shape,
    objectives: Sequence[str] = ("max",),
    *,
    no_worse_than: CoefficientSet | None = None,
    hold: Iterable[str] = OBJECTIVES,
    over_x: bool = True,
    seconds: float = 30.0,
    candidates: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Fit, ...]:
    """Return the best set for an objective, or the Pareto front of several, by the first objective.

    Parameters
    ----------
    shape
        Degree, constant term, continuity, range reduction.
    objectives
        One or more of OBJECTIVES.
    no_worse_than
        No figure of `hold` may be worse than this set's.
    hold
        The figures that count for `no_worse_than`.
    over_x
        `max` over every x in [-126, 0]; without it over the fractions alone, as if f = x - n never rounded. Only to
        compare with results that were fitted so.
    seconds
        Time for the searches of all compromises together; below degree 4 each stops by itself and takes what it takes.
    candidates
        Instead of the time, how many candidates each search looks at, about: the same answer on every machine.
    seed
        Of the search's random numbers.
    progress
        Called with the share that is done, 0 to 1.

    Raises
    ------
    FitError
        An unknown objective, or no set was found that is no worse than the one given.
    """
    begin = time.monotonic()
    unknown = [name for name in (*objectives, *hold) if name not in OBJECTIVES]
    if unknown or not objectives:
        raise FitError(f"objectives are {', '.join(OBJECTIVES)}; not {', '.join(unknown) or 'nothing'}")
    names = tuple(dict.fromkeys(objectives))
    limits: dict[str, float] = {}
    pool: dict[bytes, Candidate] = {}
    given: npt.NDArray[np.float32] | None = None
    if no_worse_than is not None:
        theirs = merit(no_worse_than.float32, floor=no_worse_than.range_reduction == "floor", over_x=over_x)
        limits = {name: theirs.objective(name) for name in hold}
        if has_shape(no_worse_than, shape):
            given = no_worse_than.float32
            pool[no_worse_than.float32.tobytes()] = Candidate(no_worse_than.float32, theirs)
    task = _Task(shape, limits, pool, seed, over_x, given, candidates)
    rounds = 1 if len(names) == 1 else len(names) + len(_compromises(len(names)))
    share = seconds / rounds
    for name in names:
        task.alone(name, share)
        progress(task.rounds / rounds)
    for weights in _compromises(len(names)) if len(names) > 1 else ():
        task.compromise(names, weights, share)
        progress(task.rounds / rounds)
    kept = front(list(pool.values()), names, limits)
    if not kept:
        raise FitError(_nothing(list(pool.values()), limits, no_worse_than))
    took = time.monotonic() - begin
    condition = "" if no_worse_than is None else f", no worse than {no_worse_than.name} in {', '.join(limits)}"
    return tuple(_fitted(each, shape, names, task.error, task.evaluated, took, condition, seed) for each in kept)


def confirm(found: Fit) -> Fit:
    """Return the fit with its largest error over every float32 x in [-126, 0), 2 to 4 s on two cores."""
    from dataclasses import replace

    from fa4verify.exp2.statistics import collect, everything

    figures = collect(everything(-126, 0), found.chosen)
    if figures.nonfinite.any():
        raise FitError(f"{found.chosen.name}: {int(figures.nonfinite.sum())} results are infinite or NaN")
    return replace(found, confirmed=float(max(-figures.low.min(), figures.high.max())))


class _Task:
    """The searches of one fit; what they find goes into a common pool."""

    def __init__(
        self,
        shape: Shape,
        limits: Mapping[str, float],
        pool: dict[bytes, Candidate],
        seed: int,
        over_x: bool,
        given: npt.NDArray[np.float32] | None,
        candidates: int | None,
    ) -> None:
        self.shape, self.limits, self.pool, self.seed, self.over_x = shape, limits, pool, seed, over_x
        self.candidates = candidates
        self.given = given  # a set of the shape that is within the limits, to start from as well
        self.floor = shape.range_reduction == "floor"
        self.rounds = self.evaluated = 0
        self.best = minimax(shape)
        self.error = float(self.best.error)

    def _target(self, weights: Mapping[str, float], limits: Mapping[str, float]) -> npt.NDArray[np.float64]:
        return target(self.shape, weights, limits, over_x=self.over_x)

    def alone(self, name: str, seconds: float) -> None:
        """Search for the best set in one objective."""
        limits = dict(self.limits)
        if name == "bias":
            starts = [self._target({"rms": 1.0}, {**limits, "bias": 1e-4 * self.error})]
            near = Lattice(self.shape, starts[0])
            rms = merit(near.to_float32(near.near(starts[0])), floor=self.floor, shares=False).rms
            limits["rms"] = min(limits.get("rms", np.inf), _UNBIASED * rms)
        elif name == "max" and not limits:
            starts = [self._target({"max": 1.0}, limits), _floats(self.best.coefficients)]
        else:
            starts = [self._target({name: 1.0}, limits)]
        self._search(Goal({name: 1.0}, limits), starts, seconds)

    def compromise(self, names: tuple[str, ...], weights: tuple[float, ...], seconds: float) -> None:
        """Search between the best and the worst figures that the sets best in one objective have."""
        edges = front(list(self.pool.values()), names, self.limits) or tuple(self.pool.values())
        scales = {}
        for name, weight in zip(names, weights, strict=True):
            values = [each.merit.objective(name) for each in edges]
            scales[name] = max(min(values) + weight * (max(values) - min(values)), 1e-12)
        starts = [self._target({name: 1.0 / scale for name, scale in scales.items()}, self.limits)]
        self._search(Goal(scales, self.limits), starts, seconds)

    def _search(self, goal: Goal, starts: list[npt.NDArray[np.float64]], seconds: float) -> None:
        lattice = Lattice(self.shape, starts[0])
        measure: Whole | Sample = Whole(self.floor, over_x=self.over_x)
        if self.shape.degree > _WHOLE_UP_TO:
            fine = self.shape.degree >= _ROUNDING_ALONE and not {"rms", "bias"}.isdisjoint(goal.names)
            measure = Sample(self.shape, over_x=self.over_x, size=2**18 if fine else 2**15)
            measure.aim(starts[0], 0.3 * self.error + _ROUNDINGS, tuple(n for n in goal.names if n in FORMATS))
            goal = Goal(goal.scales, self._on_sample(measure, goal.limits))
        if self.given is not None:
            starts = [*starts, self.given.astype(np.float64)]
        found, evaluated = search(
            self.shape,
            lattice,
            measure,
            goal,
            starts,
            seconds=seconds,
            candidates=self.candidates,
            seed=self.seed + self.rounds,
        )
        count = _MANY if self.limits or self.shape.degree >= _ROUNDING_ALONE else _FEW
        for coefficients in found[:count]:
            if coefficients.tobytes() not in self.pool:
                self.pool[coefficients.tobytes()] = self._candidate(coefficients)
        self.evaluated += evaluated
        self.rounds += 1

    def _on_sample(self, sample: Sample, limits: Mapping[str, float]) -> dict[str, float]:
        """Return limits that a sample's rms and mean must keep for those of all fractions to keep theirs, likely."""
        found = dict(limits)
        spread = {"rms": _SAMPLED_RMS, "bias": _SAMPLED_MEAN}
        for name in spread.keys() & limits.keys():
            if self.given is not None:  # a sample that calls the given set too good or too bad does so with its like
                of_given = sample.measure(self.given[None], (name,))[0, OBJECTIVES.index(name)]
                found[name] *= of_given / max(merit(self.given, floor=self.floor, shares=False).objective(name), 1e-300)
            found[name] *= 1.0 - spread[name]
        return found

    def _candidate(self, coefficients: npt.NDArray[np.float32]) -> Candidate:
        return Candidate(coefficients, merit(coefficients, floor=self.floor, over_x=self.over_x))


def front(candidates: Sequence[Candidate], names: Sequence[str], limits: Mapping[str, float]) -> tuple[Candidate, ...]:
    """Return the candidates within the limits that no other beats or equals in every objective, by the first one."""
    good = [each for each in candidates if all(each.merit.objective(k) <= limit for k, limit in limits.items())]
    values = {id(each): [each.merit.objective(name) for name in names] for each in good}
    kept: list[Candidate] = []
    for each in sorted(good, key=lambda each: values[id(each)]):
        mine = values[id(each)]
        if not any(all(a <= b for a, b in zip(values[id(other)], mine, strict=True)) for other in kept):
            kept.append(each)
    return tuple(kept)


def _compromises(count: int) -> list[tuple[float, ...]]:
    """Return weights that sum to 1, inside the simplex of `count` objectives and on its faces, corners left out."""
    steps = _FRONT.get(count, 2)
    grid = [g for g in product(range(steps + 1), repeat=count) if sum(g) == steps and max(g) < steps]
    return [tuple(v / steps for v in g) for g in grid]


def _floats(coefficients: Iterable[object]) -> npt.NDArray[np.float64]:
    return np.array([float(c) for c in coefficients])  # type: ignore[arg-type]


def has_shape(chosen: CoefficientSet, shape: Shape) -> bool:
    """Tell whether a set satisfies what a shape asks for."""
    constant = chosen.coefficients[0]
    good = {"one": constant == 1.0, "at-least-one": constant >= 1.0, "free": True}[shape.constant_term]
    same = chosen.degree == shape.degree and chosen.range_reduction == shape.range_reduction
    return same and good and (not shape.continuous or continuous(chosen.float32, shape.interval))


def _nothing(candidates: Sequence[Candidate], limits: Mapping[str, float], given: CoefficientSet | None) -> str:
    def excess(each: Candidate) -> tuple[float, str]:
        return max((each.merit.objective(k) / limit if limit else np.inf, k) for k, limit in limits.items())

    if not candidates:
        return "no float32 numbers of this shape were found: octaves that meet may need coefficients that do not exist"
    worst, name = min(excess(each) for each in candidates)
    return (
        f"no set was found that is no worse than {given.name if given else '?'} in {', '.join(limits)}; "
        f"the closest has {worst:.4g} times its {name}"
    )


def _fitted(
    found: Candidate,
    shape: Shape,
    names: tuple[str, ...],
    best_real: float,
    evaluated: int,
    took: float,
    condition: str,
    seed: int,
) -> Fit:
    from fa4verify import __version__

    coefficients = tuple(float(c) for c in found.coefficients)
    constant = {"one": "p0 = 1", "free": "p0 free", "at-least-one": "p0 >= 1"}[shape.constant_term]
    traits = [f"degree {shape.degree}", constant, f"range reduction {shape.range_reduction}"]
    traits += ["continuous"] if shape.continuous else []
    provenance = (
        f"fa4verify {__version__} exp2 fit: {', '.join(traits)}; objective {', '.join(names)}{condition}; seed {seed}"
    )
    name = f"fit:{shape.degree}:{'+'.join(names)}"
    return Fit(
        CoefficientSet(name, coefficients, shape.range_reduction, provenance),
        shape,
        names,
        found.merit,
        certify(coefficients, shape.interval),
        best_real,
        evaluated,
        took,
    )
