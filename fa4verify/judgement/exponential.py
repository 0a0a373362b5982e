"""Metrics that only exp2 has: relative errors, and what is left of them after rounding to 16 bits.

Contract: relative errors are over inputs whose exact 2^x is a normal float32; below 2^-126 a kernel may flush (MUFU) or
emit wrong subnormals (FA4's polynomial), absolutely less than 2^-126 either way. What is left are specials: NaN must
give NaN, overflow +inf, underflow something in [0, 2^-126]. Where the case declares its special values bit by bit
(`Truth.moments["declared"]`), departures from those are counted beside the departures from 2^x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement.sums import Largest, UnitMean

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FP32, _BF16, _FP16 = FORMATS["fp32"], FORMATS["bf16"], FORMATS["fp16"]


@dataclass
class Exponential:
    """Running sums over the elements of y."""

    count: int = 0
    squares: float = 0.0
    mean: UnitMean = field(default_factory=UnitMean)
    largest: Largest = field(default_factory=Largest)
    bf16: int = 0
    fp16: int = 0
    special: int = 0
    declared: int | None = None

    def add(
        self,
        start: int,
        want: NDArray[np.float64],
        have: NDArray[np.float64],
        declared: NDArray[np.float64] | None,
    ) -> None:
        """Take in elements that begin at position `start`."""
        want, have = want.ravel(), have.ravel()
        rounded = round_to(want, _FP32)
        normal = np.isfinite(rounded) & (want >= _FP32.min_normal)
        self.special += int((~normal & ~_special_is_right(rounded, have)).sum())
        if declared is not None:
            bits = declared.ravel().astype(np.float32).view(np.int32)
            equal = (bits == have.astype(np.float32).view(np.int32)) | (np.isnan(declared.ravel()) & np.isnan(have))
            self.declared = (self.declared or 0) + int((~equal).sum())
        pairs = normal & np.isfinite(have)
        if not pairs.any():
            return
        relative = np.where(pairs, np.where(pairs, have, 0.0) / np.where(pairs, want, 1.0) - 1.0, 0.0)
        self.count += int(pairs.sum())
        self.squares += float((relative * relative).sum())
        self.mean.add(relative, pairs.astype(np.float64))
        self.largest.add(np.where(pairs, np.abs(relative), -1.0), start)
        self.bf16 += int((round_to(have[pairs], _BF16) != round_to(want[pairs], _BF16)).sum())
        self.fp16 += int((round_to(have[pairs], _FP16) != round_to(want[pairs], _FP16)).sum())

    def values(self) -> dict[str, float]:
        """Return the metrics; those over normal results are absent where there is none."""
        found = {"special_mismatches": float(self.special)}
        if self.declared is not None:
            found["declared_mismatches"] = float(self.declared)
        if self.count:
            found |= {
                "max_relative": self.largest.value,
                "rmse_relative": math.sqrt(self.squares / self.count),
                "mean_relative": self.mean.mean(),
                "bf16_mismatch_rate": self.bf16 / self.count,
                "fp16_mismatch_rate": self.fp16 / self.count,
            }
        return found

    def where(self) -> dict[str, int]:
        """Return the flat position that decided `max_relative`."""
        return {"max_relative": self.largest.position} if self.count else {}


def _special_is_right(rounded: NDArray[np.float64], have: NDArray[np.float64]) -> NDArray[np.bool_]:
    underflow = (have >= 0) & (have <= _FP32.min_normal) & ~np.signbit(have)
    expected = np.where(np.isposinf(rounded), np.isposinf(have), underflow)
    return np.where(np.isnan(rounded), np.isnan(have), expected)
