"""What a correct kernel errs by: the expected squared error of every element of O and LSE.

Contract: a model, not a bound. It adds the variances of the roundings that FA4's algorithm cannot avoid, with the
squares of the few that all keys share, and knows only the inputs' moments (`Truth.moments`) and the problem's size:
never what the kernel says of itself. Derivation, sizes of what is left out, the Monte Carlo: docs/budgets.md.
Fails first, toward too small, where roundings are coherent: rows of equal P that is not representable, or a maximum
that is stale and tied. Toward too large: one key dominates and its P is exactly 1.

Numbers: docs/fa4.md (FA4 4.0.0b36) for the algorithm; ex2 and lg2 errors measured on an H200 over full octaves; the
polynomial's from all of [0, 1).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import FORMATS, ulp
from fa4verify.judgement.layout import format_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case

LN2 = math.log(2.0)
# A significand m that is log-uniform on [1, 2): E[1/m] and E[1/m^2], for the ulp of a number relative to the number.
MEAN_INVERSE = 0.5 / LN2
MEAN_INVERSE_SQUARE = 0.375 / LN2
ROUNDING32 = 2.0**-46 / 12 * MEAN_INVERSE_SQUARE  # variance of one RNE to fp32, relative
EX2_MEAN, EX2_RMS = 4.95e-8, 5.80e-8  # MUFU.EX2 on -[1, 2), relative
LG2_MAX = 0.670 * 2.0**-22  # MUFU.LG2 on [1, 2), absolute in log2 units
POLYNOMIAL_MEAN, POLYNOMIAL_RMS = 8.2368e-6, 6.0286e-5  # degree 3, whatever degree the case asks for
POLYNOMIAL_SHARE = 24 / 128  # the largest share of columns that FA4 emulates for 16-bit inputs
TANH_RMS = 1.113e-5 / math.sqrt(3)  # tanh.approx.f32, relative, uniform below its measured maximum
MMA_K = 16  # keys or channels of one tensor-core step for 16-bit inputs
SUM_CHAINS = 4  # serial chains that share a row's sum on SM90
LOG2E_32 = np.float32(1.44269502162933)
LN2_32 = np.float32(0.693147182464600)


def declares_emulation(case: Case) -> bool:
    """Say whether some of the case's exponentials are meant to come from the polynomial."""
    if "emulated_exp2" in case.requires:
        return True
    return bool(re.search(r"sm_?1[01]0", case.kernel)) and case.options.get("ex2_emu_freq", 1) != 0


def scale_error(case: Case) -> float:
    """Return the relative error of FA4's scale times ln 2: c = f32(scale) * f32(log2 e), LSE = f32(ln 2) * (...)."""
    scale = case.shape.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    if case.softcap or not scale:
        return float(np.float64(LOG2E_32) * np.float64(LN2_32) - 1)
    return float(np.float64(np.float32(scale) * LOG2E_32) * np.float64(LN2_32) / scale - 1)


def _score_variance(case: Case, row_max: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of one score in nats: the steps of QK truncate to fp32, softcap's tanh is approximate."""
    steps = math.ceil(case.shape.head_dim / MMA_K)
    relative = steps / 3 * ROUNDING32 + (TANH_RMS**2 if case.softcap else 0.0)
    return relative * row_max**2


def o_squared_error(
    case: Case, o: NDArray[np.float64], spread: NDArray[np.float64], row_max: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the expected squared error of elements of O.

    Parameters
    ----------
    o, spread
        Truth and sqrt(sum_j w_j^2 v_j^2), of one shape.
    row_max
        Largest scaled score of the row in nats, broadcastable to it; not finite where the row has no key.
    """
    output, weights = FORMATS[format_name(case, "o")], FORMATS[case.dtype]
    row_max = np.where(np.isfinite(row_max), row_max, 0.0)
    p_rounding = weights.unit_roundoff**2 / 3 * MEAN_INVERSE_SQUARE
    polynomial = POLYNOMIAL_SHARE * POLYNOMIAL_RMS**2 if declares_emulation(case) else 0.0
    weight = p_rounding + polynomial + EX2_RMS**2 + _score_variance(case, row_max)
    steps = case.shape.seqlen_k / MMA_K
    truncation = MEAN_INVERSE / 4 * steps * 2.0**-23
    return ulp(o, output) ** 2 / 12 + spread**2 * weight + o**2 * (truncation**2 + 2 * ROUNDING32)


def lse_squared_error(case: Case, lse: NDArray[np.float64], row_max: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected squared error of elements of LSE, 0 where the row has no key.

    `lse` is the truth, `row_max` the largest scaled score in nats, of one shape.
    """
    fp32 = FORMATS["fp32"]
    there = np.isfinite(lse) & np.isfinite(row_max)
    lse, row_max = np.where(there, lse, 0.0), np.where(there, row_max, 0.0)
    log2_sum = np.maximum(lse - row_max, 0.0) / LN2
    largest_weight = np.exp(np.minimum(row_max - lse, 0.0))

    reference = (LN2 * ulp(row_max / LN2, fp32)) ** 2 / 12
    last_roundings = ulp(lse, fp32) ** 2 / 12 + (LN2 * ulp(lse / LN2, fp32)) ** 2 / 12
    steps = math.ceil(case.shape.head_dim / MMA_K)
    truncated_scores = MEAN_INVERSE / 4 * (steps + 1) * 2.0**-23
    scale = row_max**2 * (scale_error(case) ** 2 + 2 * ROUNDING32 + truncated_scores**2)
    capped = row_max**2 * TANH_RMS**2 if case.softcap else 0.0
    lg2 = LN2**2 * (LG2_MAX**2 + ulp(log2_sum, fp32) ** 2) / 3
    total = reference + last_roundings + scale + capped + lg2 + EX2_RMS**2
    total = total + ROUNDING32 * case.shape.seqlen_k / SUM_CHAINS / 3 / SUM_CHAINS
    if declares_emulation(case):
        total = total + (POLYNOMIAL_SHARE * POLYNOMIAL_MEAN) ** 2
        total = total + POLYNOMIAL_SHARE * POLYNOMIAL_RMS**2 * largest_weight
    return np.where(there, total, 0.0)
