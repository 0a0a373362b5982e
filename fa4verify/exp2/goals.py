"""What a search minimises: one number made of a candidate's figures, and the limits it must keep.

Contract: `Goal.scores` gives the largest figure / scale; a candidate that exceeds a limit scores 1e6 times the excess,
above every other, so that limits are met first. `Goal.cutoffs` says above which figures a candidate cannot win, which
lets a `Sample` leave it early.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.exp2.merit import merit
from fa4verify.exp2.targets import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_EXCESS = 1e6


@dataclass(frozen=True)
class Goal:
    """What is minimised, the largest figure / scale of `scales`, and what no figure may exceed."""

    scales: Mapping[str, float]
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every figure that must be known."""
        return tuple(name for name in OBJECTIVES if name in self.scales or name in self.limits)

    def scores(self, figures: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return one number a row of figures (in the order of OBJECTIVES), smaller is better."""
        score = np.max([figures[..., OBJECTIVES.index(name)] / scale for name, scale in self.scales.items()], axis=0)
        if self.limits:
            excess = np.max(
                [_ratio(figures[..., OBJECTIVES.index(k)], limit) for k, limit in self.limits.items()], axis=0
            )
            score = np.where(excess > 1.0, _EXCESS * excess, score)
        return np.asarray(score)

    def cutoffs(self, score: float) -> dict[str, float]:
        """Return the figures above which a candidate cannot beat a score."""
        if score >= _EXCESS:
            return {name: limit * score / _EXCESS for name, limit in self.limits.items()} if self.limits else {}
        found = {name: scale * score for name, scale in self.scales.items()}
        return {**found, **{name: min(limit, found.get(name, np.inf)) for name, limit in self.limits.items()}}


def _ratio(figure: npt.NDArray[np.float64], limit: float) -> npt.NDArray[np.float64]:
    """Return figure / limit; a limit of 0 is kept by 0 alone."""
    return np.asarray(figure / limit if limit > 0.0 else np.where(figure > 0.0, 2.0 + figure, 1.0))


_STRIDE = 8  # with errors of 1e-4 a midpoint's stretch is 1300 fractions long: shares to 0.03 %


class Whole:
    """Measures over every eighth (or `stride`-th) of all fractions, on two threads."""

    def __init__(self, floor: bool, *, over_x: bool = True, stride: int = _STRIDE) -> None:
        self.floor, self.over_x, self.stride = floor, over_x, stride

    def measure(
        self, candidates: npt.NDArray[np.float32], names: tuple[str, ...], limits: Mapping[str, float] | None = None
    ) -> npt.NDArray[np.float64]:
        """Return figures (candidates, 6) in the order of OBJECTIVES; limits save nothing here and are not applied."""
        del limits
        shares = not set(names) <= {"max", "rms", "bias"}
        with ThreadPoolExecutor(2) as pool:
            found = list(
                pool.map(
                    lambda c: merit(c, floor=self.floor, over_x=self.over_x, stride=self.stride, shares=shares),
                    candidates,
                )
            )
        return np.array([[each.objective(name) for name in OBJECTIVES] for each in found]).reshape(-1, len(OBJECTIVES))
