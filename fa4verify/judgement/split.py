"""What an error against the draws is made of: rounding of the inputs, and the kernel with the cast of its output.

Contract: `input_rmse` is what float64 attention on the rounded inputs is off from float64 attention on the draws;
`rmse_on_inputs` is what the kernel is off from the former. If they are independent their squares add up to that of
`rmse`. What a correctly rounded output would score is `floor_rmse` (metrics.py). `head_spread` is the standard
deviation over heads of the RMSE of a head, relative to their mean; absent for one head. Finite elements only. Fails
first where the two errors are not independent: a saturated P hides behind a saturated input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fa4verify.vocabulary import Output, Truth

    Array = NDArray[np.float64]


def split(output: Output, truth: Truth, on_inputs: Truth) -> dict[str, float]:
    """Return the metrics for O; `truth` is that of the draws, `on_inputs` that of the inputs as rounded."""
    exact, rounded = truth.tensors["o"], on_inputs.tensors["o"]
    if output.o is None or tuple(output.o.shape) != exact.shape or not exact.size:
        return {}
    got = output.o.detach().cpu().double().numpy()
    there = np.isfinite(got) & np.isfinite(exact) & np.isfinite(rounded)
    if not there.any():
        return {}
    count = there.sum()
    found = {
        name: float(np.sqrt((np.where(there, one - other, 0.0) ** 2).sum() / count))
        for name, one, other in (("input_rmse", rounded, exact), ("rmse_on_inputs", got, rounded))
    }
    squares = np.where(there, got - exact, 0.0) ** 2
    heads = np.sqrt(squares.sum(axis=(0, 1, 3)) / np.maximum(there.sum(axis=(0, 1, 3)), 1))
    if len(heads) > 1 and heads.mean() > 0:
        found["head_spread"] = float(heads.std(ddof=1) / heads.mean())
    return found
