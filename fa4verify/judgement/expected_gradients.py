"""What a correct backward errs by: the expected squared error of every element of dQ, dK, dV, delta and dsink.

Contract: as expected.py, a model of FA4's algorithm and not a bound, made of the truth's moments (references/
backward.py defines them) and the case's sizes. Three 16-bit roundings decide: of dS (for dQ, dK) and of P (for dV),
independent from pair to pair; of the forward's O and P, which reach a whole row at once through delta = rowsum(O * dO);
of the output. The rest is fp32, and shows where LSE is a large number (its way to base 2 and back) or where softcap's
tanh is approximate. Derivation, sizes of what is left out, the Monte Carlo: docs/budgets.md.
Fails first, toward too small, where dS or P leaves the normal range of fp16, and where roundings are coherent; toward
too large where the forward's dominant P is exactly 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import FORMATS, ulp
from fa4verify.judgement.expected import (
    EX2_RMS,
    LN2,
    LN2_32,
    LOG2E_32,
    MEAN_INVERSE,
    MEAN_INVERSE_SQUARE,
    MMA_K,
    POLYNOMIAL_RMS,
    POLYNOMIAL_SHARE,
    ROUNDING32,
    TANH_RMS,
    declares_emulation,
    lse_squared_error,
)
from fa4verify.judgement.layout import per_row_of_o

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fa4verify.vocabulary import Case

    Array = NDArray[np.float64]
    Model = Callable[[slice, Array], Array]

# The moments that each tensor's model needs.
NEEDS = {
    "dq": ("dq_spread", "dq_from_delta", "lse"),
    "dk": ("dk_spread", "dk_from_delta", "lse"),
    "dv": ("dv_spread", "lse"),
    "delta": ("delta_from_o", "delta_from_p"),
    "dsink": ("dsink_from_delta", "lse"),
}
# Additions and products in fp32 from dP to dS.
STEPS_OF_DS = 3


def gradient_model(case: Case, tensor: str, moments: Mapping[str, Array]) -> Model | None:
    """Return the expected squared error as a function of a slice of rows and the truth there; None without moments."""
    if any(name not in moments for name in NEEDS[tensor]):
        return None

    def rows_of(name: str) -> Array:
        return moments[name].reshape(-1, moments[name].shape[-1])

    if tensor == "delta":
        from_o, from_p = rows_of("delta_from_o"), rows_of("delta_from_p")
        return lambda rows, want: _delta(case, want, from_o[rows], from_p[rows])
    weight = weight_variance(case, moments["lse"])
    if tensor == "dsink":
        from_delta, of_head = rows_of("dsink_from_delta"), weight.mean(axis=(0, 2))
        return lambda rows, want: _dsink(case, want, from_delta[rows], of_head)
    spread = rows_of(f"{tensor}_spread")
    if tensor == "dq":
        from_delta, common = rows_of("dq_from_delta"), per_row_of_o(weight)[:, None]
        return lambda rows, want: _product(
            case, want, spread[rows], common[rows] * want**2 + _rounding(case) * from_delta[rows] ** 2
        )
    of_key = _per_key(weight, moments[f"{tensor}_spread"].shape)
    if tensor == "dv":
        return lambda rows, want: _product(case, want, spread[rows], of_key[rows] * spread[rows] ** 2)
    through_delta = rows_of("dk_from_delta")
    return lambda rows, want: _product(
        case,
        want,
        spread[rows],
        of_key[rows] * spread[rows] ** 2 + _rounding(case) * through_delta[rows] ** 2,
    )


def weight_variance(case: Case, lse: Array) -> Array:
    """Return the relative variance that all P of a row share: LSE's error, its rounding to base 2, the constants."""
    there = np.isfinite(lse)
    size = np.where(there, lse, 0.0)
    constants = (float(np.float64(LOG2E_32) * np.float64(LN2_32)) - 1) * size
    to_base_2 = (LN2 * ulp(size / LN2, FORMATS["fp32"])) ** 2 / 12
    # The row's maximum is not known here; it is within log(seqlen_k) of LSE, and matters where both are large.
    total = lse_squared_error(case, size, size) + to_base_2 + constants**2
    if case.softcap:
        total = total + TANH_RMS**2 * np.minimum(np.abs(size), case.softcap) ** 2
    return np.where(there, total, 0.0)


def _rounding(case: Case) -> float:
    """Relative variance of one rounding to the case's dtype."""
    return FORMATS[case.dtype].unit_roundoff ** 2 / 3 * MEAN_INVERSE_SQUARE


def _product(case: Case, gradient: Array, spread: Array, of_rows: Array) -> Array:
    """Add what each of dQ, dK, dV has: independent errors of its terms, the accumulation, the output's rounding."""
    terms = _rounding(case) + EX2_RMS**2 + STEPS_OF_DS * ROUNDING32
    if case.softcap:
        terms += TANH_RMS**2
    longest = max(case.shape.seqlen_k, case.shape.seqlen_q * case.shape.heads // case.shape.heads_kv)
    truncation = MEAN_INVERSE / 4 * longest / MMA_K * 2.0**-23
    accumulated = (gradient**2 + spread**2) * (truncation**2 + 2 * ROUNDING32)
    return ulp(gradient, FORMATS[case.dtype]) ** 2 / 12 + spread**2 * terms + of_rows + accumulated


def _delta(case: Case, delta: Array, from_o: Array, from_p: Array) -> Array:
    polynomial = POLYNOMIAL_SHARE * POLYNOMIAL_RMS**2 if declares_emulation(case) else 0.0
    sums = from_o**2 * ROUNDING32 * math.log2(max(2, case.shape.head_dim_v))
    return (
        _rounding(case) * (from_o**2 + from_p**2)
        + polynomial * from_p**2
        + sums
        + ulp(delta, FORMATS["fp32"]) ** 2 / 12
    )


def _dsink(case: Case, dsink: Array, from_delta: Array, weight: Array) -> Array:
    rows = case.shape.batch * case.shape.seqlen_q
    common = (dsink**2 + from_delta**2) * (weight + EX2_RMS**2 + rows * ROUNDING32)
    return _rounding(case) * from_delta**2 + common + ulp(dsink, FORMATS["fp32"]) ** 2 / 12


def _per_key(weight: Array, shape: tuple[int, ...]) -> Array:
    """Return the mean over a key's query heads and rows for each row of dK: (batch * seqlen_k * heads_kv, 1)."""
    batch, seqlen_k, heads_kv, _ = shape
    grouped = weight.reshape(batch, heads_kv, -1)
    mean = grouped.mean(axis=2) if grouped.shape[2] else np.zeros((batch, heads_kv))
    of_key: Array = np.broadcast_to(mean[:, None, :], (batch, seqlen_k, heads_kv)).reshape(-1, 1)
    return of_key
