"""y = 2^x in float64, and what the declared polynomial makes of the same x, bit for bit.

Contract of y: x float32, NumPy's exp2 in float64. IEEE specials: 2^-inf = 0, 2^inf = inf, 2^NaN = NaN; beyond float64's
range (x >= 1024, x < -1075) inf and 0 as well. NumPy is taken to be good to 4 ulp (9e-16 relative, 1.5e-8 of an fp32
ulp): the tests hold it to that, and balls certify what the sampled points reach.

Contract of `declared`: FA4's software exp2 (flash_attn.cute utils.py, `ex2_emulation_2`), each fp32 FMA rounded once,
written unlike the kernels' own: no fma instruction, but the exact product in float64, the error of adding c by TwoSum,
the sum rounded to odd and then once to float32. 53 >= 24 + 2 bits make that the correctly rounded FMA (Boldo and
Melquiond, IEEE Trans. Computers 57-4, 2008), subnormal results included.
Fails first where a product plus c lies a hair beside a midpoint of float32: rounding the float64 sum to nearest, and
then again, errs on half of those (tests/references/test_exp2.py).
Coefficients: read a second time from FA4 4.0.0b36 `POLY_EX2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from flint import arb, ctx

from fa4verify.references.ball import PRECISION, distance
from fa4verify.vocabulary import Case, Inputs, Truth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SAMPLES = 2000
CHUNK = 2**15  # a chunk's twenty temporaries stay in cache: 2.4 times faster than whole arrays
MAGIC = 12582912.0  # 2^23 + 2^22: adding it leaves no fraction bit in a float32
COEFFICIENTS = {
    degree: tuple(float.fromhex(word) for word in words.split())
    for degree, words in {
        0: "0x1p+0",
        1: "0x1p+0 0x1.d8518ap-1",
        2: "0x1p+0 0x1.54e1c8p-1 0x1.520794p-2",
        3: "0x1p+0 0x1.63ea32p-1 0x1.d20d48p-3 0x1.3be13ap-4",
        4: "0x1p+0 0x1.62d67ep-1 0x1.ee2a1cp-3 0x1.abd484p-5 0x1.b83c6ep-7",
        5: "0x1p+0 0x1.62e4bep-1 0x1.ebdae6p-3 0x1.c921acp-5 0x1.27634cp-7 0x1.e9b62cp-10",
    }.items()
}


def solve(case: Case, inputs: Inputs) -> Truth:
    """Return the truth of y; moments["declared"] (float32) if the case declares a polynomial."""
    x = inputs.tensors["x"].detach().cpu().numpy()
    with np.errstate(all="ignore"):
        y = np.exp2(x.astype(np.float64))
    absolute, relative, count = _certify(x, y)
    coefficients = _declared_coefficients(case)
    return Truth(
        tensors={"y": y},
        radius={"y": absolute} if count else {},
        moments={} if coefficients is None else {"declared": polynomial_exp2(x, coefficients)},
        provenance={
            "reference": "float64 exp2",
            "radius": f"python-flint balls on {count} points, relative {relative:.2g}",
        },
    )


def polynomial_exp2(x: NDArray[np.float32], coefficients: Sequence[float]) -> NDArray[np.float32]:
    """Return FA4's emulated 2^x for any float32 x; coefficients are c0 first, each rounded to float32."""
    result = np.empty(x.shape, np.float32)
    flat, out = np.ascontiguousarray(x, np.float32).reshape(-1), result.reshape(-1)
    c = [np.float64(np.float32(value)) for value in coefficients]
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, CHUNK):
            out[start : start + CHUNK] = _polynomial_exp2(flat[start : start + CHUNK], c)
    return result


def _polynomial_exp2(x: NDArray[np.float32], c: list[np.float64]) -> NDArray[np.float32]:
    y = np.fmax(x, np.float32(-127.0))  # PTX max drops a NaN, as fmax does
    shifted = _add_toward_minus_infinity(y, MAGIC)
    f = y - (shifted - np.float32(MAGIC))
    p = np.full(x.shape, c[-1], np.float32)
    for coefficient in c[-2::-1]:
        p = _fma(p, f, coefficient)
    bits: NDArray[np.uint32] = (shifted.view(np.uint32) << np.uint32(23)) + p.view(np.uint32)
    return bits.view(np.float32)


def _fma(a: NDArray[np.float32], b: NDArray[np.float32], c: np.float64) -> NDArray[np.float32]:
    """Return a * b + c rounded once; c is a float32 value."""
    total, error = _two_sum(a.astype(np.float64) * b, c)
    bits = total.view(np.int64)
    # To odd: an inexact sum with an even last bit moves one step toward the error's side.
    inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd: NDArray[np.float64] = (bits + step * inexact).view(np.float64)
    return odd.astype(np.float32)


def _add_toward_minus_infinity(a: NDArray[np.float32], b: float) -> NDArray[np.float32]:
    """Return a + b rounded down; b is a float32 value."""
    total, error = _two_sum(a.astype(np.float64), np.float64(b))
    nearest = total.astype(np.float32)
    above = (nearest > total) | ((nearest == total) & (error < 0))
    nearest[above] = np.nextafter(nearest[above], np.float32(-np.inf))
    return nearest


def _two_sum(a: NDArray[np.float64], b: np.float64) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact(x: float) -> arb:
    """Return a ball around 2^x."""
    with ctx.workprec(PRECISION):
        return (arb(x) * arb.const_log2()).exp()


def _certify(x: NDArray[np.float32], y: NDArray[np.float64]) -> tuple[float, float, int]:
    """Return upper bounds of the absolute and relative error of y at evenly spaced points, and their number."""
    indices = np.unique(np.linspace(0, x.size - 1, min(SAMPLES, x.size)).astype(np.int64))
    absolute = relative = 0.0
    count = 0
    for argument, value in zip(x.reshape(-1)[indices].tolist(), y.reshape(-1)[indices].tolist(), strict=True):
        if not 2.0**-1022 <= value < 2.0**128:  # specials, and what float64 or the output cannot hold
            continue
        error = distance(value, exact(argument))
        absolute, relative, count = max(absolute, error), max(relative, error / value), count + 1
    return absolute, relative, count


def _declared_coefficients(case: Case) -> Sequence[float] | None:
    """Return the coefficients that the case declares: its options', or FA4's where a budget counts bits that differ."""
    coefficients, degree = case.options.get("coefficients"), case.options.get("degree")
    if degree is None and any(budget.metric == "declared_mismatches" for budget in case.budgets):
        degree = 3
    if coefficients is not None:
        return tuple(coefficients)
    if degree is None:
        return None
    if degree not in COEFFICIENTS:
        raise ValueError(f"options.degree: expected one of {sorted(COEFFICIENTS)}, got {degree!r}")
    return COEFFICIENTS[degree]
