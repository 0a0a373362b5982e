"""Random rotation along the head dim: signs, then Hadamard ("incoherent processing").

Contract: `rotate` multiplies by H diag(s) / sqrt(n), an orthogonal matrix, along the last axis; q . k is the same if
both are rotated with the same signs. H is Walsh-Hadamard of order n, the largest power of two that divides the head
dim; a head dim that is none is rotated in d / n separate parts, which is orthogonal too. Butterflies in float64 in one
fixed order, no BLAS: the same bits on every machine; sums of integers are exact.
Fails first where Q and K are rotated with different signs: S is then that of unrelated vectors.
Source: FlashAttention-3 (arXiv:2407.08608, section 3.3), after QuIP; the signs are ours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


def signs(head_dim: int, seed: int = 0) -> Array:
    """Return +1 and -1 for each channel, drawn once for a seed and a head dim."""
    generator = np.random.Generator(np.random.Philox(key=(seed << 32) + head_dim))
    return np.where(generator.random(head_dim) < 0.5, -1.0, 1.0)


def hadamard(x: Array) -> Array:
    """Return H x along the last axis, not normalised: every entry of H is +1 or -1."""
    width = x.shape[-1]
    order = width & -width
    y = np.array(x, np.float64).reshape(-1, width // order, order)
    half = 1
    while half < order:
        pairs = y.reshape(-1, 2, half)
        low = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = low
        half *= 2
    return y.reshape(x.shape)


def rotate(x: Array, sign: Array) -> Array:
    """Return H diag(sign) x / sqrt(n) along the last axis."""
    order = x.shape[-1] & -x.shape[-1]
    return hadamard(x * sign) / math.sqrt(order)


def rotate_back(x: Array, sign: Array) -> Array:
    """Undo `rotate`: H is symmetric, so diag(sign) H x / sqrt(n)."""
    order = x.shape[-1] & -x.shape[-1]
    return sign * (hadamard(x) / math.sqrt(order))
