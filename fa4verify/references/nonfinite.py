"""Sums of products when some operands are not finite: IEEE arithmetic, without what a mask hides.

Contract: a pair that is not seen takes no part, where a plain product with weight 0 would turn a masked infinity into
NaN. Slow (a dozen products), so it is called for tiles that hold such a number and for no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def weighted_sum(weights: Array, values: Array, seen: NDArray[np.bool_] | None) -> Array:
    """Return weights (m, n) times values (n, columns); pairs that `seen` (m, n) denies are left out, not weighed 0."""
    seen = np.ones(weights.shape, bool) if seen is None else seen
    weights = np.where(seen, weights, 0.0)
    plus, minus = _signed(weights, values), _signed(-weights, values)
    wrong = (
        _count(np.isnan(weights), np.ones(values.shape, bool))
        | _count(seen, np.isnan(values))
        | _count(seen & (weights == 0), np.isinf(values))
        | _count(np.isinf(weights), values == 0)
        | (plus & minus)
    )
    result: Array = _finite(weights) @ _finite(values)
    result[plus] += np.inf
    result[minus] -= np.inf
    result[wrong] = np.nan
    return result


def _signed(weights: Array, values: Array) -> NDArray[np.bool_]:
    """Say which sums hold a product that is +inf."""
    return (
        _count(weights > 0, values == np.inf)
        | _count(weights < 0, values == -np.inf)
        | _count(weights == np.inf, values > 0)
        | _count(weights == -np.inf, values < 0)
    )


def _count(weights: NDArray[np.bool_], values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return (weights.astype(np.float64) @ values.astype(np.float64)) > 0


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)
